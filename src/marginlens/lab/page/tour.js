// The guided tour.

export function mountTour() {
  return null;
}

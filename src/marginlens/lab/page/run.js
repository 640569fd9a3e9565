// Runs of descent and their playback.

export class Runs {
  paths = [];
  step = 0;
  subscribe() {
    return () => {};
  }
  play() {}
  pause() {}
  scrubTo() {}
  update() {}
}

export function mountPlayback() {
  return { update() {} };
}

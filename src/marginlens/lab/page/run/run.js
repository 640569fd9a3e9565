// Runs: a descent from every start in step with the others, played, paused, scrubbed and computed in slices that leave the page smooth.

import { Descent, loopOf, NON_FINITE, RAN_ALL, STATIONARY } from "../../kernels/descent.js";
import { norm } from "../../kernels/linalg.js";
import { DEFAULT_STEPS, ProblemError, readProblem } from "../../kernels/problem.js";
import { withPlayback } from "../state.js";

const [FIRST_SPEED, GROWTH] = [100, 0.5]; // steps per second at the start, and by which share of the steps it grows beyond that

const FRAME_BUDGET_MS = 8; // of computing in a frame
const DRAG_BUDGET_MS = 3; // while the problem changes
const DRAG_REST_MS = 100; // after a change until the budget is whole again
const MAX_ELAPSED_MS = 100; // longer frames do not make a run jump
const REDUCED_MOTION_MS = 700; // between two updates where motion is reduced
const CHUNK_STEPS = 512; // of all starts together, between two looks at the clock
const SAMPLE_RATIO = 2 ** (1 / 64); // of two successive steps that are drawn, once they are far from the start

/** The next step after `step` that is drawn: every one at first, later 64 of them while the number of steps doubles. */
export function nextSample(step) {
  return Math.max(step + 1, Math.ceil(step * SAMPLE_RATIO));
}

/**
 * The run from one start, with samples of it: steps and points (of p), heads (of v where the head is trained too, else null).
 * `now` is { step, point, head } at the step that is shown.
 */
export class Path {
  constructor(problem) {
    this.problem = problem;
    this.descent = new Descent(loopOf(problem));
    this.steps = [];
    this.points = [];
    this.heads = problem.joint ? [] : null;
    this.#sample(0, this.descent.point);
    this.now = this.at(0);
  }

  /** RAN_ALL while it can go on, STATIONARY, or NON_FINITE. */
  get status() {
    return this.descent.status;
  }

  /** How many steps were taken. */
  get taken() {
    return this.descent.steps;
  }

  get isRunning() {
    return this.status === RAN_ALL;
  }

  #parts(point) {
    return this.problem.joint ? { point: point.slice(2), head: point.slice(0, 2) } : { point, head: null };
  }

  #sample(step, whole) {
    const { point, head } = this.#parts(whole);
    this.steps.push(step);
    this.points.push(point);
    this.heads?.push(head);
  }

  /** Take steps up to `step`, and samples on the way. */
  advanceTo(step) {
    const last = () => this.steps[this.steps.length - 1];
    const samples = [];
    for (let next = nextSample(last()); next <= step; next = nextSample(next)) samples.push(next);
    this.descent.advance(step - this.taken, samples).forEach((point, k) => this.#sample(samples[k], point));
    if (!this.isRunning && this.taken > last()) this.#sample(this.taken, this.descent.point);
  }

  /** { step, point, head } after `step` steps, exactly; the last ones where it has ended before. */
  at(step) {
    return { step: Math.min(step, this.taken), ...this.#parts(this.descent.at(step)) };
  }
}

/** How a path ended, in words; empty while it can go on. */
export function endOf(path) {
  const after = path.taken === 0 ? "at its start" : `after ${path.taken.toLocaleString("en")} steps`;
  if (path.status === STATIONARY) return `stands still ${after}: the gradient is exactly zero`;
  if (path.status === NON_FINITE) return `left the range of numbers ${after}, at norm ${norm(path.now.point).toExponential(1)}`;
  return "";
}

const isSame = (a, b) => a === b || JSON.stringify(a) === JSON.stringify(b);
const withoutSteps = ({ steps, ...problem }) => problem;

/**
 * The runs of a store's state. `update` follows the state, before the views do; listeners hear of every other change of `paths`, `step` and
 * `isPlaying`.
 */
export class Runs {
  #store;
  #now;
  #frame;
  #isCalm;
  #listeners = new Set();
  #problem = null; // of the paths, as the state has it
  #starts = [];
  #goal = 0; // the step to show once it is computed, with fractions while playing
  #savedStep;
  #lastTick = null;
  #lastShown = -Infinity;
  #lastChange = -Infinity;
  #isScheduled = false;

  /** now: milliseconds; frame: calls a function before the next frame; isCalm: whether motion is to be reduced. */
  constructor(store, { now, frame, isCalm } = {}) {
    this.#store = store;
    this.#now = now ?? (() => performance.now());
    this.#frame = frame ?? ((call) => requestAnimationFrame(call));
    this.#isCalm = isCalm ?? (() => matchMedia("(prefers-reduced-motion: reduce)").matches);
    this.paths = [];
    this.step = 0;
    this.isPlaying = false;
    this.#savedStep = store.state.playback.step;
    this.#goal = this.#savedStep;
    this.#rebuild();
    this.#schedule();
  }

  /** Follow the state: other paths where the problem is another one, another step where a link or a reset has one. */
  update() {
    const { step } = this.#store.state.playback;
    if (step !== this.#savedStep) {
      this.#savedStep = step;
      this.#goal = step;
      this.isPlaying = false;
    }
    const isNew = this.#rebuild();
    if (isNew) this.#lastChange = this.#now();
    this.#advance(isNew ? DRAG_BUDGET_MS : 0);
    if (this.isPlaying || this.isComputing) this.#schedule();
  }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** The number of steps that all paths which go on have taken. */
  get taken() {
    const running = this.paths.filter((path) => path.isRunning);
    const counts = (running.length > 0 ? running : this.paths).map((path) => path.taken);
    if (counts.length === 0) return 0;
    return Math.min(this.#limit, running.length > 0 ? Math.min(...counts) : Math.max(...counts));
  }

  /** The last step there is: that of the problem, or the one at which the last path ended. */
  get end() {
    return this.paths.some((path) => path.isRunning) ? this.#limit : this.taken;
  }

  get #limit() {
    return this.#store.state.problem.steps ?? DEFAULT_STEPS;
  }

  /** Whether steps are being computed that were asked for. */
  get isComputing() {
    return this.step < Math.floor(this.#goal) && this.taken < this.end;
  }

  /** Go on from the step that is shown; from the start where it is the last one. */
  play() {
    if (this.isPlaying || this.paths.length === 0) return;
    if (this.step >= this.end) this.#show(0);
    this.isPlaying = true;
    this.#goal = this.step;
    this.#lastTick = this.#now();
    this.#lastShown = -Infinity;
    this.#tell();
    this.#schedule();
  }

  pause() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    this.#goal = this.step;
    this.#save();
    this.#tell();
  }

  toggle() {
    if (this.isPlaying) this.pause();
    else this.play();
  }

  /** Show a step, computing up to it where it was not reached; `save` writes it into the state. */
  scrubTo(step, { save = true } = {}) {
    this.isPlaying = false;
    this.#rebuild();
    this.#goal = Math.max(0, Math.min(Math.round(step), this.#limit));
    this.#compute(this.#goal, FRAME_BUDGET_MS);
    this.#show(Math.min(this.#goal, this.taken));
    if (save) this.#save();
    this.#tell();
    if (this.isComputing) this.#schedule();
  }

  stepBy(count) {
    this.scrubTo(this.step + count);
  }

  #tell() {
    for (const listener of this.#listeners) listener(this);
  }

  #save() {
    this.#savedStep = Math.floor(this.#goal);
    const { step } = this.#store.state.playback;
    if (step === this.#savedStep) return;
    this.#store.apply("move along the path", (state) => withPlayback(state, { step: this.#savedStep }), { undoable: false });
  }

  #show(step) {
    this.step = step;
    for (const path of this.paths) path.now = path.at(step);
  }

  /** Paths for the problem and the starts of the state; those whose problem and start are as before stay. Whether any is new. */
  #rebuild() {
    const { problem, starts } = this.#store.state;
    const asked = withoutSteps(problem);
    const before = this.#problem;
    if (before === null || !isSame(before.asked, asked)) {
      try {
        this.#problem = { asked, read: readProblem(problem) };
      } catch (error) {
        if (!(error instanceof ProblemError)) throw error;
        this.#problem = null;
      }
    }
    const isNew = before === null || this.#problem !== before;
    if (!isNew && isSame(this.#starts, starts)) return false;
    const read = this.#problem?.read;
    this.paths = !read
      ? []
      : starts.map((start, k) =>
          !isNew && isSame(this.#starts[k], start) ? this.paths[k] : new Path({ ...read, start: Float64Array.from(start) }),
        );
    this.#starts = starts;
    return true;
  }

  /** Take steps with all paths up to `step` until the budget is spent. */
  #compute(step, budget) {
    const deadline = this.#now() + budget;
    const chunk = Math.max(1, Math.floor(CHUNK_STEPS / this.paths.length));
    while (this.paths.some((path) => path.isRunning && path.taken < step)) {
      const next = Math.min(step, this.taken + chunk);
      for (const path of this.paths) path.advanceTo(next);
      if (this.#now() >= deadline) return;
    }
  }

  #schedule() {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    this.#frame(() => {
      this.#isScheduled = false;
      this.#tick();
    });
  }

  /** Compute towards the goal and show what is reached; whether another step is shown. */
  #advance(budget) {
    this.#goal = Math.min(this.#goal, this.#limit);
    this.#compute(Math.floor(this.#goal), budget);
    const step = Math.min(Math.floor(this.#goal), this.taken);
    if (this.isPlaying && this.#goal >= step + 1) this.#goal = step; // what the machine does not manage is not caught up
    const time = this.#now();
    const isEnd = step >= this.end;
    if (this.isPlaying && !isEnd && this.#isCalm() && time - this.#lastShown < REDUCED_MOTION_MS) return false;
    const isOther = step !== this.step || this.paths.some((path) => path.now.step !== Math.min(step, path.taken));
    if (isOther) {
      this.#lastShown = time;
      this.#show(step);
    }
    return isOther;
  }

  #tick() {
    const time = this.#now();
    const elapsed = Math.min(time - (this.#lastTick ?? time), MAX_ELAPSED_MS);
    this.#lastTick = time;
    if (this.isPlaying) this.#goal += (elapsed * Math.max(FIRST_SPEED, GROWTH * this.step)) / 1000;
    if (this.#advance(time - this.#lastChange < DRAG_REST_MS ? DRAG_BUDGET_MS : FRAME_BUDGET_MS)) this.#tell();
    if (this.isPlaying && this.step >= this.end) this.pause();
    if (this.isPlaying || this.isComputing) this.#schedule();
  }
}

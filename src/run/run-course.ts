import { type Judged, judgeState, type StateFacts } from "./state.ts";

/** What others know of the run's health; the rest of the facts is the course's own. */
export type Health = Omit<
  StateFacts,
  "phase" | "doing" | "isWarm" | "ending" | "endingReason" | "stopping" | "blocked"
>;

export interface Course extends Judged {
  /** ISO 8601: when it came into this state. */
  since: string;
  /** In words: "loading the model". */
  phase: string;
}

/** How far a run has come from its start to its end, in words and as a state. */
export class RunCourse {
  #phase: StateFacts["phase"] = "planning";
  #words = "starting";
  #detail: string | null = null;
  #isWarm = false;
  #ending: StateFacts["ending"] = null;
  #endingReason: string | null = null;
  #stopping = false;
  #blocked: StateFacts["blocked"] = null;
  #state = "starting";
  #since: string;

  constructor(at: string) {
    this.#since = at;
  }

  get isOver(): boolean {
    return this.#ending !== null;
  }

  /** `words`: what is being done; `detail`: how far it is. */
  phase(phase: StateFacts["phase"], words: string, detail: string | null = null): void {
    this.#phase = phase;
    this.#words = words;
    this.#detail = detail;
  }

  /** The first batch came out of an engine, or went into the store. */
  warm(): void {
    this.#isWarm = true;
  }

  blocked(blocked: StateFacts["blocked"]): void {
    this.#blocked = blocked;
  }

  stopping(): void {
    this.#stopping = true;
  }

  ended(ending: NonNullable<StateFacts["ending"]>, reason: string | null): void {
    this.#ending = ending;
    this.#endingReason = reason;
  }

  /** `engines`: what they are at, for as long as none of them has given anything. */
  judge(health: Health, engines: string | null, at: string): Course {
    const isWarming = this.#phase === "extracting" && !this.#isWarm;
    const phase = isWarming ? "computing the first batches" : this.#words;
    const detail = this.#detail ?? (isWarming || this.#phase === "loading" ? engines : null);
    const judged = judgeState({
      ...health,
      phase: this.#phase,
      doing: detail === null ? phase : `${phase}: ${detail}`,
      isWarm: this.#isWarm,
      ending: this.#ending,
      endingReason: this.#endingReason,
      stopping: this.#stopping,
      blocked: this.#blocked,
    });
    if (judged.state !== this.#state) {
      this.#state = judged.state;
      this.#since = at;
    }
    return { ...judged, since: this.#since, phase };
  }
}

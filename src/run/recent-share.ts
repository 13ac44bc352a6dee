const WINDOW_S = 300;
const STEP_S = 5;
/** Of fewer a share says nothing. */
const ALL_MIN = 100;

/** What share of something was of one kind in the last five minutes, from two counts that only rise. */
export class RecentShare {
  readonly #looks: { atS: number; all: number; part: number }[] = [{ atS: 0, all: 0, part: 0 }];

  /** Once a second or so; `atS`: monotonic. */
  look(atS: number, counts: { all: number; part: number }): void {
    const looks = this.#looks;
    // The newest is moved on until it is a step away from the one before.
    if (looks.length > 1 && looks.at(-1)!.atS - looks.at(-2)!.atS < STEP_S) looks.pop();
    looks.push({ atS, ...counts });
    while (looks.length > 2 && atS - looks[1]!.atS >= WINDOW_S) looks.shift();
  }

  /** 0-1; null where there was too little to tell. */
  share(): number | null {
    const [first, last] = [this.#looks[0]!, this.#looks.at(-1)!];
    const all = last.all - first.all;
    return all < ALL_MIN ? null : (last.part - first.part) / all;
  }
}

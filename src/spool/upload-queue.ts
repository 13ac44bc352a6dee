import type { PackExpectation } from "../pack/check.ts";
import type { ReadyPack } from "./reservation.ts";
import type { StoreGate } from "./store-gate.ts";

/** A pack on its way to the store, from ready/ to its commit. */
export interface QueuedPack {
  pack: ReadyPack;
  expected: PackExpectation;
  /** Attempts made. */
  attempts: number;
  /** Failures in a row, what the delay grows by. */
  failures: number;
  lookFirst: boolean;
  notBeforeMs: number;
  /** stuck: its key in the store needs a person. leaving: its spoiled file is being moved aside. */
  state: "waiting" | "flying" | "stuck" | "leaving";
  toldStuck: boolean;
}

/** The packs that were handed over and are not committed, in the order in which they came. Pure: the caller's clock. */
export class UploadQueue {
  readonly #entries = new Map<number, QueuedPack>();
  /** By the store's Retry-After. */
  #notBeforeMs = 0;

  get size(): number {
    return this.#entries.size;
  }

  get waiting(): number {
    let waiting = 0;
    for (const { state } of this.#entries.values()) if (state === "waiting") waiting += 1;
    return waiting;
  }

  /** Batches whose key needs a person. */
  get stuck(): number[] {
    return [...this.#entries.values()].filter(({ state }) => state === "stuck").map(({ pack }) => pack.batch);
  }

  /** Each batch once: throws a plain Error where it is here already. */
  add(pack: ReadyPack, expected: PackExpectation, lookFirst: boolean): void {
    if (this.#entries.has(pack.batch)) throw new Error(`batch ${pack.batch} is being uploaded already`);
    this.#entries.set(pack.batch, {
      pack,
      expected,
      attempts: 0,
      failures: 0,
      lookFirst,
      notBeforeMs: 0,
      state: "waiting",
      toldStuck: false,
    });
  }

  remove(batch: number): void {
    this.#entries.delete(batch);
  }

  /** Nothing is tried before then. */
  holdUntil(ms: number): void {
    this.#notBeforeMs = Math.max(this.#notBeforeMs, ms);
  }

  /** What failed for a cause that is over need not sit out its own delay. */
  hurry(): void {
    for (const entry of this.#entries.values()) if (entry.state === "waiting") entry.notBeforeMs = 0;
  }

  /** Those that may be tried now; `later` hears when each that was passed over may be. */
  *due(nowMs: number, gate: StoreGate, later: (dueMs: number) => void): Generator<QueuedPack> {
    for (const entry of this.#entries.values()) {
      if (entry.state === "flying" || entry.state === "leaving") continue;
      // While the gate is closed the one probe goes by the gate's clock, and stuck packs wait for the store.
      const isOpen = gate.state === "ok";
      if (!isOpen && entry.state === "stuck") continue;
      const dueMs = Math.max(isOpen ? entry.notBeforeMs : gate.notBeforeMs, this.#notBeforeMs);
      if (dueMs > nowMs) later(dueMs);
      else yield entry;
    }
  }
}

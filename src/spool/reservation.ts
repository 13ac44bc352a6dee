import type { PackContents } from "../pack/writer.ts";
import type { Claim } from "./budget.ts";

/** A finished pack in ready/, on its way to the store. */
export interface ReadyPack {
  batch: number;
  path: string;
  /** The object's exact size. */
  bytes: number;
  /** Of the whole object; null for one found at the start and not yet read. */
  crc32c: number | null;
}

/** What a reservation does on the disk; each throws RunError (exit disk). */
export interface PartFiles {
  /** Makes a part file of `bytes` and returns its path. */
  create(batch: number, attempt: number, bytes: number): Promise<string>;
  /** Completes it and moves it into ready/, where `claim` stays with it. */
  finish(part: string, contents: PackContents, claim: Claim): Promise<ReadyPack>;
  drop(part: string): Promise<void>;
}

/** Room for one pack, from before the engine is asked until the object is verified. */
export class Reservation {
  readonly bytes: number;
  readonly #claim: Claim;
  readonly #parts: PartFiles;
  #part: string | null = null;
  #ended = false;

  /** Use Spool.reserve. */
  constructor(bytes: number, claim: Claim, parts: PartFiles) {
    this.bytes = bytes;
    this.#claim = claim;
    this.#parts = parts;
  }

  /**
   * Makes `<batch>.<attempt>.part` of exactly this reservation's bytes and returns its absolute path.
   * An attempt after a failed one: drop that one's file first (`dropPart`), once its engine has exited.
   * Throws RunError (exit disk; remedy "retry" when the disk is full: the spool then pauses by itself).
   */
  async createPart(batch: number, attempt: number): Promise<string> {
    if (this.#part || this.#ended)
      throw new Error(`batch ${batch}: its reservation already has a part or has ended`);
    this.#part = await this.#parts.create(batch, attempt, this.bytes);
    return this.#part;
  }

  /** Deletes the part file and keeps the room, for another attempt. */
  async dropPart(): Promise<void> {
    if (this.#part) await this.#parts.drop(this.#part);
    this.#part = null;
  }

  /**
   * Writes ids, masks and header, renames into ready/; the room stays held until the spool is told `evicted`.
   * On failure the part is still there and the reservation still held: `drop` or `dropPart` it.
   */
  async finish(contents: PackContents): Promise<ReadyPack> {
    if (!this.#part || this.#ended) throw new Error("this reservation has no part to finish");
    if (contents.layout.bytes !== this.bytes) {
      throw new Error(
        `batch ${contents.layout.batch} needs ${contents.layout.bytes} bytes, reserved ${this.bytes}`,
      );
    }
    const pack = await this.#parts.finish(this.#part, contents, this.#claim);
    this.#ended = true;
    this.#part = null;
    return pack;
  }

  /** Gives everything back. Doing it twice, or after `finish`, is harmless. */
  async drop(): Promise<void> {
    if (this.#ended) return;
    this.#ended = true;
    try {
      await this.dropPart();
    } finally {
      this.#claim.release();
    }
  }
}

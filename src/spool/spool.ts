import { join } from "node:path";
import { sleep } from "../base/backoff.ts";
import { formatBytes } from "../base/bytes.ts";
import { EXIT, isOutOfSpace, RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { PackExpectation } from "../pack/check.ts";
import type { PackContents } from "../pack/writer.ts";
import { batchName } from "../store/keys.ts";
import { Budget, type Claim } from "./budget.ts";
import { describeDisk } from "./disk-fault.ts";
import { readyName, type SpoolDirectory, type SpoolFile, type SpoolOwner } from "./files.ts";
import { FilesThread } from "./files-client.ts";
import { lockSpool, type SpoolLock } from "./lock.ts";
import { type PartFiles, type ReadyPack, Reservation } from "./reservation.ts";

export interface SpoolOptions {
  directory: string;
  /** Upper bound on everything the spool holds or has promised, quarantine included. */
  budgetBytes: number;
  /** Kept free on the file system for others. Default 1 GiB. */
  floorBytes?: number;
  /** Default: the file system's own. */
  blockBytes?: number;
  owner: SpoolOwner;
  log: Log;
  /** Monotonic. */
  nowMs: () => number;
  /** How often a full disk is tried again. Default 2,000. */
  probeMs?: number;
}

export interface SpoolUsage {
  /** reserved + written + quarantined, in whole blocks; never above `budgetBytes` but after it was lowered. */
  bytes: number;
  budgetBytes: number;
  /** Files in ready/. */
  files: number;
  quarantined: number;
  /** Free on the file system when last asked; null before that. */
  diskFreeBytes: number | null;
  volatile: boolean;
  /** Reservations that wait for room, and how long the first of them has. */
  waiting: { count: number; oldestMs: number };
  /** Seconds during which some reservation waited: the disk stage's `blocked`. */
  waitedSeconds: number;
  /** Why nothing is granted now, or null. */
  paused: string | null;
}

interface HeldPack extends ReadyPack {
  claim: Claim;
}

/**
 * The bounded disk between engines and store: one directory, owned by one run part, locked by one process.
 *   parts/<batch>.<attempt>.part   an engine writes it      dropped at the next start
 *   ready/<batch>.safetensors      a whole pack             uploaded, never computed again here
 *   quarantine/                    spoiled files, newest 3  for a person; counted in the budget
 * Every file call runs in a thread of its own.
 */
export class Spool {
  readonly directory: string;
  /** On tmpfs: what is in ready/ goes with the machine's power. */
  readonly volatile: boolean;
  readonly #files: FilesThread;
  readonly #lock: SpoolLock;
  readonly #budget: Budget;
  readonly #log: Log;
  readonly #probeMs: number;
  readonly #floorBytes: number;
  readonly #ready = new Map<number, HeldPack>();
  #quarantined: { file: SpoolFile; claim: Claim }[] = [];
  #quarantines = 0;
  #found: SpoolFile[] = [];
  #diskFreeBytes: number | null = null;
  #pause: { reason: string; over: Promise<void> } | null = null;
  readonly #closing = new AbortController();
  readonly #parts: PartFiles = {
    create: (batch, attempt, bytes) => this.#createPart(batch, attempt, bytes),
    finish: (part, contents, claim) => this.#finishPart(part, contents, claim),
    drop: (path) => this.#files.call("dropFile", path),
  };

  private constructor(directory: SpoolDirectory, files: FilesThread, lock: SpoolLock, options: SpoolOptions) {
    this.directory = directory.path;
    this.volatile = directory.volatile;
    this.#files = files;
    this.#lock = lock;
    this.#log = options.log;
    this.#probeMs = options.probeMs ?? 2_000;
    this.#floorBytes = options.floorBytes ?? 2 ** 30;
    this.#budget = new Budget({
      budgetBytes: options.budgetBytes,
      floorBytes: this.#floorBytes,
      blockBytes: options.blockBytes ?? directory.blockBytes,
      freeBytes: () => this.#freeBytes(),
      nowMs: options.nowMs,
    });
  }

  /**
   * Opens, locks and cleans the directory: half-written parts are dropped; ready files wait for `takeFound`.
   * Throws RunError: exit locked (another process, another run or part), exit disk (another user's, not a spool,
   * not writable). After a refusal the directory is as it was.
   */
  static async open(options: SpoolOptions): Promise<Spool> {
    const files = new FilesThread();
    let lock: SpoolLock | null = null;
    try {
      const directory = await files.call("openDirectory", options.directory);
      lock = await lockSpool(directory);
      const found = await files.call("claimDirectory", { path: directory.path, owner: options.owner });
      const spool = new Spool(directory, files, lock, options);
      spool.#found = found.ready;
      spool.#quarantined = found.quarantined.map((file) => ({
        file,
        claim: spool.#budget.adopt(file.bytes),
      }));
      for (const file of found.ready)
        spool.#hold({ ...file, crc32c: null, claim: spool.#budget.adopt(file.bytes) });
      await spool.#freeBytes();
      options.log.info("spool.opened", {
        directory: directory.path,
        volatile: directory.volatile,
        ready: found.ready.length,
        parts_dropped: found.dropped,
        quarantined: found.quarantined.length,
      });
      return spool;
    } catch (error) {
      await lock?.release();
      await files.close();
      throw describeDisk(error, options.directory);
    }
  }

  /**
   * Waits its turn for `bytes` of budget and disk. First come, first served; nothing is granted while the disk is
   * full or the spool holds more than a lowered budget. Rejects with the signal's reason.
   */
  async reserve(bytes: number, signal?: AbortSignal): Promise<Reservation> {
    return new Reservation(bytes, await this.#budget.acquire(bytes, signal), this.#parts);
  }

  /** Files that were in ready/ at the start, once; who takes them checks each (recover.ts) before it is uploaded. */
  takeFound(): ReadyPack[] {
    const found = this.#found.map(({ batch }) => this.#ready.get(batch)!);
    this.#found = [];
    return found;
  }

  /** Throws RunError (exit integrity) where a ready file is not exactly the planned pack; else its CRC-32C. */
  checkReady(pack: ReadyPack, expected: PackExpectation): Promise<number> {
    return this.#files.call("checkFile", { path: pack.path, expected });
  }

  /** The pack's file was deleted after its object was verified. */
  evicted(batch: number): void {
    this.#ready.get(batch)?.claim.release();
    this.#ready.delete(batch);
  }

  /** Moves a spoiled ready file to quarantine/, whose older files make room. */
  async quarantine(batch: number): Promise<void> {
    const moved = this.#ready.get(batch);
    if (!moved) return;
    const kept = await this.#files.call("quarantine", {
      file: moved.path,
      directory: join(this.directory, "quarantine"),
      suffix: `${Date.now().toString(36)}${this.#quarantines++}`,
    });
    this.#ready.delete(batch);
    const before = this.#quarantined;
    // Its own room moves with it: the sum must not rise, not even for an instant.
    this.#quarantined = kept.map(
      (file) => before.find((entry) => entry.file.path === file.path) ?? { file, claim: moved.claim },
    );
    for (const entry of before) if (!this.#quarantined.includes(entry)) entry.claim.release();
  }

  usage(): SpoolUsage {
    return {
      bytes: this.#budget.usedBytes,
      budgetBytes: this.#budget.budgetBytes,
      files: this.#ready.size,
      quarantined: this.#quarantined.length,
      diskFreeBytes: this.#diskFreeBytes,
      volatile: this.volatile,
      waiting: this.#budget.waiting(),
      waitedSeconds: this.#budget.waitedSeconds(),
      paused: this.#pause?.reason ?? (this.#budget.refusedByDisk ? this.#underFloor() : null),
    };
  }

  #underFloor(): string {
    const free = this.#diskFreeBytes === null ? "too little" : formatBytes(this.#diskFreeBytes);
    return `the disk has ${free} free, and ${formatBytes(this.#floorBytes)} are always left (--disk-floor)`;
  }

  /**
   * The disk is full, or out of inodes or quota, though the budget said there was room (others use it too).
   * Stops granting until a file of `bytes` can really be made again, trying every `probeMs`; resolves then.
   * Call it as soon as an engine or a file call says so; calls meanwhile share one pause.
   */
  pauseUntilSpace(bytes: number, reason = "disk full"): Promise<void> {
    this.#pause ??= { reason, over: this.#waitForSpace(bytes, reason) };
    return this.#pause.over;
  }

  /**
   * Lets the directory go, keeping what is in ready/. `release`: also takes our folders away if neither a pack nor a
   * spoiled file is in them, so that another run may use the directory.
   */
  async close(options: { release?: boolean } = {}): Promise<void> {
    this.#closing.abort(new Error("the spool was closed"));
    this.#budget.close();
    try {
      if (options.release) await this.#files.call("releaseDirectory", this.directory);
    } finally {
      await this.#lock.release();
      await this.#files.close();
    }
  }

  async #createPart(batch: number, attempt: number, bytes: number): Promise<string> {
    const path = join(this.directory, "parts", `${batchName(batch)}.${attempt}.part`);
    await this.#onDisk(bytes, path, () => this.#files.call("createPart", { path, bytes }));
    return path;
  }

  async #finishPart(part: string, contents: PackContents, claim: Claim): Promise<ReadyPack> {
    const { batch, bytes } = contents.layout;
    const path = join(this.directory, "ready", readyName(batch));
    const crc32c = await this.#onDisk(bytes, part, () =>
      this.#files.call("finishPart", { part, ready: path, contents }),
    );
    return this.#hold({ batch, path, bytes, crc32c, claim });
  }

  #hold(pack: HeldPack): HeldPack {
    pack.claim.settle();
    this.#ready.set(pack.batch, pack);
    return pack;
  }

  async #onDisk<T>(bytes: number, path: string, act: () => Promise<T>): Promise<T> {
    try {
      return await act();
    } catch (error) {
      if (isOutOfSpace(error)) void this.pauseUntilSpace(bytes, "disk full").catch(() => {});
      throw describeDisk(error, path);
    }
  }

  async #freeBytes(): Promise<number> {
    const free = await this.#files.call("freeSpace", this.directory);
    this.#diskFreeBytes = free.bytes;
    return free.inodes > 0 ? free.bytes : 0;
  }

  async #waitForSpace(bytes: number, reason: string): Promise<void> {
    this.#budget.pause();
    this.#log.warn("spool.paused", { reason, directory: this.directory, wanted_bytes: bytes });
    try {
      do {
        await sleep(this.#probeMs, this.#closing.signal);
      } while (!(await this.#files.call("probeSpace", { path: this.directory, bytes })));
      this.#log.info("spool.resumed", { directory: this.directory });
    } finally {
      // Also where the probe met another fault: the next file call meets it too and reports it with its path.
      this.#pause = null;
      if (!this.#closing.signal.aborted) this.#budget.resume();
    }
  }
}

/** Throws (usage) where the budget cannot keep every engine busy: two packs each, and one that uploads. */
export function assertBudget(options: { budgetBytes: number; packBytesMax: number; engines: number }): void {
  const { budgetBytes, packBytesMax, engines } = options;
  const needed = (2 * engines + 1) * packBytesMax;
  if (budgetBytes >= needed) return;
  throw new RunError({
    op: "open spool",
    subject: "--spool-bytes",
    message: `${engines} engine${engines === 1 ? "" : "s"} with packs of up to ${formatBytes(packBytesMax)} need ${formatBytes(needed)} (two packs an engine and one more), found ${formatBytes(budgetBytes)}`,
    safe: "nothing was started",
    hint: `set --spool-bytes to at least ${needed}, or lower --pack-bytes`,
    exit: EXIT.usage,
  });
}

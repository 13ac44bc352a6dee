import { spawn } from "node:child_process";
import { once } from "node:events";
import {
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { EXIT, type RunError } from "../src/base/errors.ts";
import { silentLog } from "../src/base/log.ts";
import type { Spool } from "../src/spool/spool.ts";
import { needRoot, type SmallDisk, smallDisk } from "./support/disks.ts";
import {
  fillReservation,
  IDENTITY,
  layoutOf,
  makeReady,
  makeRoot,
  openSpool,
  packOf,
  recoverModule,
  spoolModule,
  writeStates,
} from "./support/spool-rig.ts";

let root: string;
let remove: () => void;
let open: Spool[] = [];
const disks: SmallDisk[] = [];

beforeEach(() => {
  ({ root, remove } = makeRoot());
});
afterEach(async () => {
  await Promise.all(open.map((spool) => spool.close()));
  open = [];
  for (const disk of disks.splice(0)) disk.remove();
  remove();
});

async function opened(...args: Parameters<typeof openSpool>): Promise<Spool> {
  const spool = await openSpool(...args);
  open.push(spool);
  return spool;
}

const refusal = async (promise: Promise<unknown>): Promise<RunError> => {
  const error: unknown = await promise.then(
    () => null,
    (e: unknown) => e,
  );
  // Errors from dist/ are of dist's own RunError class.
  expect((error as RunError)?.name).toBe("RunError");
  return error as RunError;
};

/** Every path below `directory` with its size, to show that nothing was changed. */
function listing(directory: string): string[] {
  return readdirSync(directory, { recursive: true, encoding: "utf8" })
    .map((name) => `${name} ${lstatSync(join(directory, name)).size}`)
    .sort();
}

/** In whole blocks. */
const onDisk = (batch: number): number => 4096 * Math.ceil(layoutOf(batch).bytes / 4096);

function mountTmpfs(size: string): SmallDisk {
  const disk = smallDisk(join(root, "disk"), size);
  disks.push(disk);
  return disk;
}

/** Asks for `bytes` until the disk, not the budget, refuses them, and gives up. */
async function refusedByDisk(spool: Spool, bytes: number): Promise<void> {
  const giveUp = new AbortController();
  const asked = spool.reserve(bytes, giveUp.signal);
  await expect.poll(() => spool.usage().paused).toContain("(--disk-floor)");
  giveUp.abort(new Error("gave up"));
  await expect(asked).rejects.toThrow("gave up");
}

describe("opening a spool", () => {
  it("makes a private directory and private files", async () => {
    const spool = await opened(join(root, "a/b/spool"));
    const ready = await makeReady(spool, 1);
    expect(statSync(spool.directory).mode & 0o777).toBe(0o700);
    expect(statSync(ready.path).mode & 0o777).toBe(0o600);
  });

  it("refuses a spool that another process holds, and takes it over once that was killed", async () => {
    const directory = join(root, "spool");
    const script = `
      import { Spool } from ${JSON.stringify(new URL("../dist/spool/spool.js", import.meta.url).href)};
      const log = { debug() {}, info() {}, warn() {}, error() {} };
      await Spool.open({ directory: ${JSON.stringify(directory)}, budgetBytes: 1e9, floorBytes: 0, log,
        owner: { runId: ${JSON.stringify(IDENTITY)}, part: "1/1" }, nowMs: () => 0 });
      console.log("open");
      setInterval(() => {}, 1e6);
    `;
    const holder = spawn(process.execPath, ["--input-type=module", "-e", script], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    try {
      await once(holder.stdout!, "data");
      const before = listing(directory);
      const error = await refusal(openSpool(directory));
      expect([error.exit, error.subject]).toEqual([EXIT.locked, directory]);
      expect(listing(directory)).toEqual(before);
    } finally {
      holder.kill("SIGKILL");
      await once(holder, "exit");
    }
    await opened(directory);
  });

  it("takes over a spool of another run in which no pack waits", async () => {
    const directory = join(root, "spool");
    await (await openSpool(directory)).close();
    writeFileSync(join(directory, "parts/00000009.0.part"), "half");
    const theirs = await openSpool(directory, { owner: { runId: "cd".repeat(32), part: "1/1" } });
    expect(readdirSync(join(directory, "parts"))).toEqual([]);
    expect(theirs.takeFound()).toEqual([]);
    await theirs.close();
  });

  it("refuses a spool of another run or part and changes nothing in it", async () => {
    const directory = join(root, "spool");
    const mine = await openSpool(directory);
    const ready = await makeReady(mine, 4);
    writeFileSync(join(directory, "parts/00000009.0.part"), "half");
    await mine.close();
    const before = listing(directory);
    for (const owner of [
      { runId: "cd".repeat(32), part: "1/1" },
      { runId: IDENTITY, part: "2/2" },
    ]) {
      const error = await refusal(openSpool(directory, { owner }));
      expect([error.exit, error.message]).toEqual([EXIT.locked, expect.stringContaining("belongs to run")]);
      expect(listing(directory)).toEqual(before);
    }
    expect(existsSync(ready.path)).toBe(true);
  });

  it("refuses a directory that holds other files, a file, and a broken owner file", async () => {
    writeFileSync(join(root, "thesis.tex"), "text");
    expect((await refusal(openSpool(root))).message).toContain("thesis.tex");
    expect((await refusal(openSpool(join(root, "thesis.tex")))).exit).toBe(EXIT.disk);
    const spool = join(root, "spool");
    mkdirSync(spool);
    writeFileSync(join(spool, "owner.json"), "{");
    expect((await refusal(openSpool(spool))).message).toContain("owner file");
    expect(readdirSync(spool)).toEqual(["owner.json"]);
  });

  it("does not follow symlinks that someone planted", async () => {
    const victim = join(root, "victim");
    writeFileSync(victim, "precious");
    const spool = await opened(join(root, "spool"));
    symlinkSync(victim, join(spool.directory, "parts/00000007.0.part"));
    const reservation = await spool.reserve(1000);
    const error = await refusal(reservation.createPart(7, 0));
    expect(error.exit).toBe(EXIT.disk);
    expect(readFileSync(victim, "utf8")).toBe("precious");
    await reservation.drop();
    expect(spool.usage().bytes).toBe(0);

    const elsewhere = join(root, "elsewhere");
    mkdirSync(elsewhere);
    await spool.close();
    rmSync(join(spool.directory, "ready"), { recursive: true });
    symlinkSync(elsewhere, join(spool.directory, "ready"));
    expect((await refusal(openSpool(spool.directory))).message).toContain("expected a directory");
  });

  it("refuses a budget that would leave an engine waiting, with the numbers", () => {
    const packBytesMax = 64 * 2 ** 20;
    spoolModule.assertBudget({ budgetBytes: 5 * packBytesMax, packBytesMax, engines: 2 });
    expect(() =>
      spoolModule.assertBudget({ budgetBytes: 5 * packBytesMax - 1, packBytesMax, engines: 2 }),
    ).toThrow("2 engines with packs of up to 64.0 MiB need 320.0 MiB");
  });
});

describe("the budget on a real disk", () => {
  it("holds a pack's room from the reservation until it is evicted", async () => {
    const spool = await opened(join(root, "spool"), { budgetBytes: 40_960 });
    const { bytes } = layoutOf(0);
    const first = await spool.reserve(bytes);
    const part = await first.createPart(0, 0);
    expect(statSync(part).size).toBe(bytes);
    let isGone = false;
    const next = spool.reserve(40_000).then((reservation) => {
      expect(isGone).toBe(true);
      return reservation;
    });
    writeStates(part, packOf(0));
    const ready = await first.finish(packOf(0).contents);
    expect([existsSync(part), readFileSync(ready.path).equals(packOf(0).bytes)]).toEqual([false, true]);
    await first.drop();
    expect(spool.usage()).toMatchObject({ bytes: onDisk(0), files: 1 });
    rmSync(ready.path);
    isGone = true;
    spool.evicted(0);
    await (await next).drop();
    expect(spool.usage()).toMatchObject({ bytes: 0, files: 0, waiting: { count: 0 } });
  });

  it("gives a failed attempt's room to the next attempt", async () => {
    const spool = await opened(join(root, "spool"));
    const reservation = await spool.reserve(layoutOf(3).bytes);
    const first = await reservation.createPart(3, 0);
    await reservation.dropPart();
    const second = await reservation.createPart(3, 1);
    expect([existsSync(first), existsSync(second)]).toEqual([false, true]);
    await reservation.drop();
    await reservation.drop();
    expect(readdirSync(join(spool.directory, "parts"))).toEqual([]);
  });

  it("works on tmpfs, and says that it is volatile", async () => {
    const spool = await opened(join(mountTmpfs("4m").path, "spool"));
    await makeReady(spool, 1);
    expect(spool.usage().volatile).toBe(true);
    expect((await opened(join(root, "on-disk"))).volatile).toBe(false);
  });

  it("grants what a small disk has, not what the budget allows", async () => {
    const { path: disk } = mountTmpfs("1m");
    const spool = await opened(join(disk, "spool"), { budgetBytes: 2 ** 30, floorBytes: 200_000 });
    await refusedByDisk(spool, 900_000);
    const first = await spool.reserve(600_000);
    // Nothing is written yet: statfs alone would promise the same bytes twice.
    await refusedByDisk(spool, 600_000);
    await first.drop();
    await (await spool.reserve(600_000)).drop();
  });

  it("when someone else fills the disk it pauses, and goes on by itself after", async () => {
    const { path: disk } = mountTmpfs("1m");
    const spool = await opened(join(disk, "spool"));
    const reservation = await spool.reserve(400_000);
    const part = await reservation.createPart(0, 0);
    writeFileSync(join(disk, "hog"), Buffer.alloc(900_000, 1));
    expect(() => writeFileSync(part, Buffer.alloc(400_000, 2))).toThrow("ENOSPC");
    await reservation.drop();
    const over = spool.pauseUntilSpace(400_000);
    expect(spool.usage().paused).toBe("disk full");
    const order: string[] = [];
    void over.then(() => order.push("space"));
    // There would be room for this one.
    const small = spool.reserve(1).then(() => order.push("small"));
    const next = spool.reserve(400_000);
    expect(readdirSync(join(spool.directory, "parts"))).toEqual([]);
    rmSync(join(disk, "hog"));
    await Promise.all([over, small]);
    expect(order).toEqual(["space", "small"]);
    const part2 = await (await next).createPart(0, 1);
    writeFileSync(part2, Buffer.alloc(400_000, 2));
    expect(spool.usage().paused).toBeNull();
  });

  it("out of inodes is a full disk too", async () => {
    const { path: disk } = mountTmpfs("4m,nr_inodes=12");
    const spool = await opened(join(disk, "spool"));
    const reservation = await spool.reserve(1000);
    let hogs = 0;
    for (; ; hogs += 1) {
      try {
        writeFileSync(join(disk, `hog${hogs}`), "");
      } catch {
        break;
      }
    }
    const error = await refusal(reservation.createPart(0, 0));
    expect([error.exit, error.remedy]).toEqual([EXIT.disk, "retry"]);
    expect(spool.usage().paused).toBe("disk full");
    const waiting = spool.reserve(1000);
    for (; hogs > 0; hogs -= 1) rmSync(join(disk, `hog${hogs - 1}`));
    await (await waiting).createPart(1, 0);
    await reservation.createPart(0, 1);
  });

  it("a disk that turned read-only is an error with its path, and ready packs stay", async () => {
    const disk = mountTmpfs("4m");
    const spool = await opened(join(disk.path, "spool"));
    const ready = await makeReady(spool, 1);
    const reservation = await spool.reserve(layoutOf(2).bytes);
    disk.readOnly();
    const error = await refusal(reservation.createPart(2, 0));
    expect([error.exit, error.remedy, error.message]).toEqual([
      EXIT.disk,
      "stop",
      expect.stringContaining("read-only"),
    ]);
    expect(error.subject).toContain("parts/00000002.0.part");
    expect(existsSync(ready.path)).toBe(true);
  });
});

describe("recovering a spool at the start", () => {
  const recover = (spool: Spool) =>
    recoverModule.recoverReady({
      spool,
      identity: IDENTITY,
      layoutOf: (batch) => (batch < 100 ? layoutOf(batch) : null),
      log: silentLog,
    });

  /** Lets go of a spool as a killed process does: nothing is tidied. */
  async function withReady(batches: number[]): Promise<string> {
    const spool = await openSpool(join(root, "spool"));
    for (const batch of batches) await makeReady(spool, batch);
    await spool.close();
    return spool.directory;
  }

  it("drops parts and keeps whole packs, which are never computed again", async () => {
    const directory = await withReady([1, 2]);
    writeFileSync(join(directory, "parts/00000003.0.part"), Buffer.alloc(5000));
    const spool = await opened(directory);
    const { good, spoiled } = await recover(spool);
    expect(good.map(({ pack }) => pack.batch)).toEqual([1, 2]);
    expect([spoiled, readdirSync(join(directory, "parts"))]).toEqual([[], []]);
    expect(spool.usage()).toMatchObject({ files: 2, bytes: onDisk(1) + onDisk(2) });
    expect(spool.takeFound()).toEqual([]);
  });

  const faults: [string, (path: string) => void][] = [
    ["a truncated file", (path) => truncateSync(path, 5000)],
    ["an empty file, as a power cut leaves it", (path) => truncateSync(path, 0)],
    [
      "a file with a hole of zeros in its states",
      (path) => spoil(path, layoutOf(5).samples[1]!.statesByte + 64),
    ],
    ["a file whose header never reached the disk", (path) => spoil(path, 0)],
    ["a flipped bit in the ids", (path) => spoil(path, layoutOf(5).samples[2]!.idsByte)],
    ["a longer file", (path) => truncateSync(path, layoutOf(5).bytes + 1)],
    ["another batch's pack under this name", (path) => writeFileSync(path, packOf(6).bytes)],
    ["another run's pack", (path) => writeFileSync(path, packOf(5, "cd".repeat(32)).bytes)],
  ];
  it.each(faults)("%s goes to quarantine and its batch is computed again", async (_what, damage) => {
    const directory = await withReady([4, 5]);
    const path = join(directory, "ready/00000005.safetensors");
    damage(path);
    const spool = await opened(directory);
    const { good, spoiled } = await recover(spool);
    expect(good.map(({ pack }) => pack.batch)).toEqual([4]);
    expect(spoiled.map(({ batch }) => batch)).toEqual([5]);
    expect(existsSync(path)).toBe(false);
    expect(spool.usage()).toMatchObject({ files: 1, quarantined: 1 });
    // Its name is free for the batch's next attempt.
    await fillReservation(await spool.reserve(layoutOf(5).bytes), 5);
  });

  it("a batch that the plan does not have is not uploaded", async () => {
    const directory = await withReady([4]);
    writeFileSync(join(directory, "ready/00000777.safetensors"), packOf(4).bytes);
    const { good, spoiled } = await recover(await opened(directory));
    expect([good.length, spoiled.map(({ batch }) => batch)]).toEqual([1, [777]]);
  });

  it("keeps the newest three spoiled files only, and counts them in the budget", async () => {
    const batches = [1, 2, 3, 4, 5, 6];
    const directory = await withReady(batches);
    for (const batch of batches) spoil(join(directory, `ready/0000000${batch}.safetensors`), 0);
    const spool = await opened(directory);
    expect((await recover(spool)).spoiled).toHaveLength(6);
    const kept = readdirSync(join(directory, "quarantine")).sort();
    expect(kept.map((name) => name.slice(0, 8))).toEqual(["00000004", "00000005", "00000006"]);
    const bytes = [4, 5, 6].reduce((sum, batch) => sum + onDisk(batch), 0);
    expect(spool.usage()).toMatchObject({ files: 0, quarantined: 3, bytes });
    await spool.close();
    expect((await opened(directory)).usage()).toMatchObject({ quarantined: 3, bytes });
  });

  it("drains a lowered budget before it grants again", async () => {
    const directory = await withReady([1, 2, 3]);
    const spool = await opened(directory, { budgetBytes: onDisk(3) + 4095 });
    await recover(spool);
    let granted = false;
    const next = spool.reserve(1000).then(() => {
      granted = true;
    });
    for (const batch of [1, 2, 3]) {
      await new Promise(setImmediate);
      expect([spool.usage().bytes >= onDisk(3), granted]).toEqual([true, false]);
      rmSync(join(directory, `ready/0000000${batch}.safetensors`));
      spool.evicted(batch);
    }
    await next;
  });

  function spoil(path: string, byte: number): void {
    const bytes = readFileSync(path);
    bytes.fill(0, byte, byte + 32);
    if (byte > 0) bytes[byte]! ^= 0xff;
    writeFileSync(path, bytes);
  }
});

it("refuses another user's directory", async () => {
  needRoot("giving a directory to another user");
  const directory = join(root, "spool");
  mkdirSync(directory);
  chownSync(directory, 12345, 12345);
  const error = await refusal(openSpool(directory));
  expect([error.exit, error.message]).toEqual([EXIT.disk, expect.stringContaining("user 12345")]);
  expect(readdirSync(directory)).toEqual([]);
});

describe("a run that is done", () => {
  it("leaves its spool free for another run, and what others put there alone", async () => {
    const spool = await openSpool(join(root, "spool"));
    writeFileSync(join(root, "spool", "thesis.txt"), "years of work");
    await spool.close({ release: true });
    expect(readdirSync(join(root, "spool"))).toEqual(["thesis.txt"]);
    rmSync(join(root, "spool", "thesis.txt"));
    await opened(join(root, "spool"), { owner: { runId: "cd".repeat(32), part: "1/1" } });
  });

  it("does not release a spool in which a pack waits", async () => {
    const spool = await openSpool(join(root, "spool"));
    await makeReady(spool, 0);
    await spool.close({ release: true });
    const other = { owner: { runId: "cd".repeat(32), part: "1/1" } };
    expect((await refusal(openSpool(join(root, "spool"), other))).exit).toBe(EXIT.locked);
    expect(readdirSync(join(root, "spool", "ready"))).toHaveLength(1);
  });
});

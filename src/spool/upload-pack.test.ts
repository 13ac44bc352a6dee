import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { makePack, tapNumbers } from "../../test/support/packs.ts";
import { crc32c } from "../base/checksum.ts";
import { EXIT } from "../base/errors.ts";
import { metadataBytesOf } from "../pack/metadata.ts";
import { packKey } from "../store/keys.ts";
import { openStore } from "../store/open.ts";
import { type OpenedStore, type Store, StoreError, type StoreTraits } from "../store/store.ts";
import { type AttemptOutcome, uploadPack } from "./upload-pack.ts";

const IDENTITY = "ab".repeat(32);
const OTHER_IDENTITY = "cd".repeat(32);
const shape = { taps: 2, hidden: 8, hasLossMask: true, metadataBytes: metadataBytesOf(tapNumbers(2)) };
const batch = { index: 12, samples: [40, 7, 8].map((row, i) => ({ row, tokens: 3 + i })) };
const ours = makePack(batch, shape, new Map(), IDENTITY);
/** The same batch of the same run with other bytes: GPU output is not bit-stable, and here a row was skipped. */
const sibling = makePack(batch, shape, new Map([[7, "oom"]]), IDENTITY);
const stranger = makePack(batch, shape, new Map(), OTHER_IDENTITY);
const KEY = packKey(12);

const TRAITS: StoreTraits = {
  publish: "create-only",
  verify: "readback",
  refusesWrongChecksum: true,
  notes: [],
};

let root: string;
let store: OpenedStore;
let path: string;

beforeEach(async () => {
  root = mkdtempSync(join(tmpdir(), "forebay-upload-"));
  store = await openStore({ kind: "directory", directory: root, name: "run" });
  path = join(root, "ready.safetensors");
  writeFileSync(path, ours.bytes);
});
afterEach(() => rmSync(root, { recursive: true }));

/** One attempt against the directory store, with some of its calls replaced. */
async function attempt(
  faults: Partial<Store> = {},
  options: { traits?: Partial<StoreTraits>; lookFirst?: boolean; crc32c?: number; buffer?: Buffer } = {},
): Promise<AttemptOutcome> {
  const through: Store = {
    address: store.address,
    put: (...a) => store.put(...a),
    head: (...a) => store.head(...a),
    get: (...a) => store.get(...a),
    list: (...a) => store.list(...a),
    delete: (...a) => store.delete(...a),
    close: () => store.close(),
    ...faults,
  };
  const { outcome } = await uploadPack(
    {
      batch: 12,
      path,
      expected: { identity: IDENTITY, layout: ours.layout },
      crc32c: options.crc32c ?? null,
      traits: { ...TRAITS, ...options.traits },
      lookFirst: options.lookFirst ?? false,
    },
    {
      store: through,
      buffer: options.buffer ?? Buffer.alloc(ours.bytes.length + 100),
      signal: new AbortController().signal,
      nowMs: () => performance.now(),
    },
  );
  return outcome;
}

const objectPath = () => join(root, "run", KEY);
const stored = () => readFileSync(objectPath());
function putBehindItsBack(bytes: Uint8Array): void {
  mkdirSync(dirname(objectPath()), { recursive: true });
  writeFileSync(objectPath(), bytes);
}

describe("uploadPack", () => {
  it("publishes the file's bytes, verifies them and only then deletes the file", async () => {
    const order: string[] = [];
    const outcome = await attempt({
      put: async (...a) => {
        order.push("put", existsSync(path) ? "file" : "no file");
        return store.put(...a);
      },
      head: async (...a) => {
        order.push("head", existsSync(path) ? "file" : "no file");
        return store.head(...a);
      },
      get: async (...a) => {
        order.push("get", existsSync(path) ? "file" : "no file");
        return store.get(...a);
      },
    });
    expect(outcome).toEqual({ kind: "committed", how: "created" });
    expect(order).toEqual(["put", "file", "head", "file", "get", "file"]);
    expect(existsSync(path)).toBe(false);
    expect(stored().equals(ours.bytes)).toBe(true);
  });

  describe("keeps the file when the separate check does not find what was sent", () => {
    /** Each says 200 to the PUT. With the verify step removed, every one of these is a lost pack. */
    const liars: [string, Partial<Store>, Partial<StoreTraits>][] = [
      ["the object is not there", { put: async () => ({ kind: "created", etag: null }) }, {}],
      [
        "a byte flipped on the way",
        {
          put: async () => {
            const bytes = Buffer.from(ours.bytes);
            bytes[bytes.length - 1]! ^= 1;
            putBehindItsBack(bytes);
            return { kind: "created", etag: null };
          },
        },
        {},
      ],
      [
        "the object is cut",
        {
          put: async () => {
            putBehindItsBack(ours.bytes.subarray(0, 300));
            return { kind: "created", etag: null };
          },
        },
        { verify: "checksum" },
      ],
      [
        "the store's own checksum is another",
        {
          put: async () => {
            putBehindItsBack(Buffer.alloc(ours.bytes.length));
            return { kind: "created", etag: null };
          },
          head: async (key) => ({ ...(await store.head(key))!, crc32c: 1234 }),
        },
        { verify: "checksum" },
      ],
      [
        "the ETag is not the MD5 of what was sent",
        {
          put: async () => {
            putBehindItsBack(Buffer.alloc(ours.bytes.length));
            return { kind: "created", etag: null };
          },
          head: async (key) => ({ ...(await store.head(key))!, etag: "0".repeat(32) }),
        },
        { verify: "etag" },
      ],
    ];
    it.each(liars)("%s", async (_what, faults, traits) => {
      const outcome = await attempt(faults, { traits });
      expect(outcome.kind).not.toBe("committed");
      expect(readFileSync(path).equals(ours.bytes)).toBe(true);
    });
  });

  it("verifies by a matching checksum or ETag without reading the object back", async () => {
    const { createHash } = await import("node:crypto");
    const facts = { crc32c: crc32c(ours.bytes), etag: createHash("md5").update(ours.bytes).digest("hex") };
    for (const verify of ["checksum", "etag"] as const) {
      writeFileSync(path, ours.bytes);
      rmSync(join(root, "run"), { recursive: true, force: true });
      const outcome = await attempt(
        {
          head: async (key) => ({ ...(await store.head(key))!, ...facts }),
          get: async () => {
            throw new Error("read back");
          },
        },
        { traits: { verify } },
      );
      expect(outcome).toEqual({ kind: "committed", how: "created" });
    }
  });

  describe("when the key is taken", () => {
    it("by equal bytes: it is ours, from a PUT whose answer was lost", async () => {
      putBehindItsBack(ours.bytes);
      expect(await attempt()).toEqual({ kind: "committed", how: "ours" });
      expect(existsSync(path)).toBe(false);
    });

    it("by another whole pack of this run and batch: already done, ours is dropped, theirs stays", async () => {
      putBehindItsBack(sibling.bytes);
      expect(await attempt()).toEqual({ kind: "committed", how: "already" });
      expect(existsSync(path)).toBe(false);
      expect(stored().equals(sibling.bytes)).toBe(true);
    });

    it("by another run's pack: the run stops with exit 4, both are kept", async () => {
      putBehindItsBack(stranger.bytes);
      const outcome = await attempt();
      expect(outcome).toMatchObject({ kind: "fatal", error: { exit: EXIT.identity } });
      expect([existsSync(path), stored().equals(stranger.bytes)]).toEqual([true, true]);
    });

    const torn: [string, () => Buffer][] = [
      ["a truncated object", () => ours.bytes.subarray(0, ours.bytes.length - 50)],
      ["an empty object", () => Buffer.alloc(0)],
      ["an object cut inside its header", () => ours.bytes.subarray(0, 100)],
      ["something else altogether", () => Buffer.from("<html>welcome to nginx</html>".repeat(50))],
      [
        "a pack with a spoiled state",
        () => {
          const bytes = Buffer.from(ours.bytes);
          bytes[ours.layout.samples[1]!.statesByte]! ^= 0x40;
          return bytes;
        },
      ],
      [
        "this run's pack of another batch",
        () => makePack({ ...batch, index: 13 }, shape, new Map(), IDENTITY).bytes,
      ],
    ];
    it.each(torn)("by %s: blocked with exit 9 and its name, both are kept", async (_what, bytes) => {
      putBehindItsBack(bytes());
      const outcome = await attempt();
      expect(outcome).toMatchObject({
        kind: "blocked",
        scope: "pack",
        error: { exit: EXIT.integrity, subject: KEY },
      });
      expect([existsSync(path), stored().equals(bytes())]).toEqual([true, true]);
    });

    it("by a sound pack of which one answer had a flipped byte: it is read again before it is condemned", async () => {
      putBehindItsBack(sibling.bytes);
      let flips = 1;
      const outcome = await attempt(
        {
          head: async (key) => ({ ...(await store.head(key))!, crc32c: 99 }),
          get: async (key, range) => {
            const bytes = (await store.get(key, range))!;
            if (range!.startByte > 8 && flips-- > 0) bytes[bytes.length - 1]! ^= 1;
            return bytes;
          },
        },
        { traits: { verify: "checksum" } },
      );
      expect(outcome).toEqual({ kind: "committed", how: "already" });
    });

    it("in overwrite mode it looks before it puts, so that nothing is overwritten", async () => {
      putBehindItsBack(sibling.bytes);
      const outcome = await attempt({}, { traits: { publish: "overwrite" } });
      expect(outcome).toEqual({ kind: "committed", how: "already" });
      expect(stored().equals(sibling.bytes)).toBe(true);
    });
  });

  it("after a lost answer it looks before it sends everything again", async () => {
    const lost = new StoreError({ kind: "timeout", op: "put", subject: KEY, message: "no answer" });
    const first = await attempt({
      put: async (...a) => {
        await store.put(...a);
        throw lost;
      },
    });
    expect(first).toMatchObject({ kind: "retry", lookFirst: true });
    const second = await attempt(
      {
        put: async () => {
          throw new Error("sent again");
        },
      },
      { lookFirst: true },
    );
    expect(second).toEqual({ kind: "committed", how: "ours" });
  });

  it("never lets out bytes that changed after the engine's CRC", async () => {
    const bytes = Buffer.from(ours.bytes);
    bytes[ours.layout.samples[2]!.statesByte + 3]! ^= 1;
    writeFileSync(path, bytes);
    expect(await attempt()).toMatchObject({ kind: "spoiled", reason: expect.stringContaining("row 8") });
    expect(existsSync(objectPath())).toBe(false);
  });

  it("takes a file of the wrong size for spoiled", async () => {
    truncateSync(path, ours.bytes.length - 1);
    expect((await attempt()).kind).toBe("spoiled");
    expect(existsSync(objectPath())).toBe(false);
  });

  it("takes a vanished file for committed only where its object is in the store", async () => {
    rmSync(path);
    expect(await attempt()).toEqual({ kind: "vanished" });
    putBehindItsBack(ours.bytes);
    expect(await attempt()).toEqual({ kind: "committed", how: "ours" });
  });

  const kinds = [
    ["throttled", "retry"],
    ["unavailable", "retry"],
    ["timeout", "retry"],
    ["unreachable", "retry"],
    ["conflict", "retry"],
    ["refused-checksum", "retry"],
    ["credentials", "blocked"],
    ["denied", "blocked"],
    ["clock", "blocked"],
    ["no-bucket", "blocked"],
    ["full", "blocked"],
  ] as const;
  it.each(kinds)("a PUT that fails with %s is %s, and the file is kept", async (kind, expected) => {
    const outcome = await attempt({
      put: async () => {
        throw new StoreError({ kind, op: "put", subject: KEY, message: kind, hint: "do this" });
      },
    });
    expect(outcome).toMatchObject({ kind: expected, error: { store: { kind } } });
    expect(existsSync(path)).toBe(true);
  });

  describe("reads while it sends, where the CRC is known and the store has one of its own", () => {
    /** What a store with checksums does with a source: it keeps the object only if all of it came. */
    const slicesSent: number[] = [];
    const withChecksums: Partial<Store> = {
      put: async (key, body, options) => {
        if (body instanceof Uint8Array) throw new Error("expected a source");
        const parts: Buffer[] = [];
        slicesSent.push(0);
        for (const slice of body.slices()) {
          parts.push(Buffer.from(slice));
          slicesSent[slicesSent.length - 1]! += 1;
          // The one before the last is free, says the contract: so it may as well be gone.
          await new Promise(setImmediate);
        }
        const bytes = Buffer.concat(parts);
        expect(bytes.length).toBe(body.byteLength);
        return store.put(key, bytes, options);
      },
      head: async (key) => {
        const info = await store.head(key);
        return info && { ...info, crc32c: crc32c(stored()) };
      },
      get: async () => {
        throw new Error("read back");
      },
    };
    /** Of seven bytes or so at a time: many slices, the header in several. */
    const streamed = () => ({
      traits: { verify: "checksum" } as const,
      crc32c: crc32c(ours.bytes),
      buffer: Buffer.alloc(15),
    });
    beforeEach(() => slicesSent.splice(0));

    it("sends the file's bytes through two small buffers, verifies them and deletes the file", async () => {
      expect(await attempt(withChecksums, streamed())).toEqual({ kind: "committed", how: "created" });
      expect(slicesSent).toEqual([Math.ceil(ours.bytes.length / 7)]);
      expect(stored().equals(ours.bytes)).toBe(true);
      expect(existsSync(path)).toBe(false);
    });

    it.each([
      ["the CRC is not known", {}, { verify: "checksum" }],
      ["the store keeps no checksum", { crc32c: crc32c(ours.bytes) }, { verify: "etag" }],
      [
        "the store takes wrong bytes",
        { crc32c: crc32c(ours.bytes) },
        { verify: "checksum", refusesWrongChecksum: false },
      ],
    ] as const)("reads the whole file first where %s", async (_what, known, traits) => {
      let body: unknown;
      const put: Store["put"] = async (...a) => {
        body = a[1];
        return store.put(...a);
      };
      expect(await attempt({ put }, { ...known, traits })).toEqual({ kind: "committed", how: "created" });
      expect(body).toBeInstanceOf(Uint8Array);
    });

    const spoils: [string, () => void, RegExp][] = [
      ["in its header", () => flip(9), /./],
      ["in its first sample", () => flip(ours.layout.samples[0]!.startByte), /row 40/],
      ["in its last byte", () => flip(ours.bytes.length - 1), /row 8/],
      ["by a byte too few", () => truncateSync(path, ours.bytes.length - 1), /expected \d+ bytes, found/],
      ["by a byte too many", () => writeFileSync(path, "x", { flag: "a" }), /expected \d+ bytes, found/],
      ["by another run's pack", () => writeFileSync(path, stranger.bytes), /pack of run abab/],
      ["by another sound pack of the same batch", () => writeFileSync(path, sibling.bytes), /have the CRC/],
    ];
    function flip(byte: number): void {
      const bytes = readFileSync(path);
      bytes[byte]! ^= 1;
      writeFileSync(path, bytes);
    }
    it.each(spoils)("never sends the last bytes of a file that is spoiled %s", async (_what, spoil, why) => {
      spoil();
      const outcome = await attempt(withChecksums, streamed());
      expect(outcome).toEqual({ kind: "spoiled", reason: expect.stringMatching(why) });
      expect(slicesSent[0]).toBeLessThan(Math.ceil(ours.bytes.length / 7));
      expect([existsSync(objectPath()), existsSync(path)]).toEqual([false, true]);
    });

    it("takes a whole file for spoiled that has another CRC than the one known beforehand", async () => {
      const outcome = await attempt(withChecksums, { ...streamed(), crc32c: crc32c(ours.bytes) ^ 1 });
      expect(outcome).toEqual({
        kind: "spoiled",
        reason: expect.stringContaining("should have the CRC-32C"),
      });
      expect([existsSync(objectPath()), existsSync(path)]).toEqual([false, true]);
    });

    it("takes a file for spoiled that shrinks while it is sent", async () => {
      const put: Store["put"] = (key, body, options) => {
        if (body instanceof Uint8Array) throw new Error("expected a source");
        const slices = function* () {
          for (const slice of body.slices()) {
            truncateSync(path, ours.bytes.length - 20);
            yield slice;
          }
        };
        return withChecksums.put!(key, { byteLength: body.byteLength, slices }, options);
      };
      const outcome = await attempt({ ...withChecksums, put }, streamed());
      expect(outcome).toEqual({ kind: "spoiled", reason: expect.stringContaining("the file ends at byte") });
      expect(existsSync(objectPath())).toBe(false);
    });

    it("keeps the file when the store's own checksum is another", async () => {
      const head: Store["head"] = async (key) => ({ ...(await store.head(key))!, crc32c: 1234 });
      const outcome = await attempt({ ...withChecksums, head, get: (...a) => store.get(...a) }, streamed());
      expect(outcome).toEqual({ kind: "committed", how: "already" });
      writeFileSync(path, ours.bytes);
      putBehindItsBack(ours.bytes.subarray(0, 300));
      const torn = await attempt({ ...withChecksums, get: (...a) => store.get(...a) }, streamed());
      expect(torn).toMatchObject({ kind: "blocked", scope: "pack" });
      expect(existsSync(path)).toBe(true);
    });

    it("after a lost answer it sends nothing again", async () => {
      putBehindItsBack(ours.bytes);
      const outcome = await attempt(withChecksums, { ...streamed(), lookFirst: true });
      expect(outcome).toEqual({ kind: "committed", how: "ours" });
      expect([slicesSent, existsSync(path)]).toEqual([[], false]);
    });

    it("counts reading as disk and the rest of the PUT as upload", async () => {
      let nowMs = 0;
      const { seconds } = await uploadPack(
        {
          batch: 12,
          path,
          expected: { identity: IDENTITY, layout: ours.layout },
          lookFirst: false,
          ...streamed(),
          traits: { ...TRAITS, verify: "checksum" },
        },
        {
          store: {
            ...store,
            ...(withChecksums as Store),
            put: async (...a) => {
              nowMs += 5_000;
              return withChecksums.put!(...a);
            },
          },
          buffer: Buffer.alloc(2 * ours.bytes.length),
          signal: new AbortController().signal,
          // A second passes between any two looks at the clock.
          nowMs: () => (nowMs += 1_000),
        },
      );
      // One slice: 1 s of reading within the PUT's 3 s, its own 5 s, and 1 s for the unlink.
      expect(seconds).toMatchObject({ disk: 2, upload: 7 });
    });

    it("takes a vanished file for committed only where its object is in the store", async () => {
      rmSync(path);
      expect(await attempt(withChecksums, streamed())).toEqual({ kind: "vanished" });
      putBehindItsBack(ours.bytes);
      expect(await attempt(withChecksums, streamed())).toEqual({ kind: "committed", how: "ours" });
    });
  });

  it("publishing twice is harmless", async () => {
    expect(await attempt()).toEqual({ kind: "committed", how: "created" });
    writeFileSync(path, ours.bytes);
    expect(await attempt()).toEqual({ kind: "committed", how: "ours" });
    expect(stored().equals(ours.bytes)).toBe(true);
  });
});

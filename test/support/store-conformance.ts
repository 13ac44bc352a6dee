import { createHash, randomBytes } from "node:crypto";
import { describe, expect, it } from "vitest";
import { crc32c } from "../../src/base/checksum.ts";
import { silentLog } from "../../src/base/log.ts";
import { packKey, packLanes } from "../../src/store/keys.ts";
import { probeStore } from "../../src/store/probe.ts";
import { type ObjectInfo, type OpenedStore, StoreError, type StoreTraits } from "../../src/store/store.ts";
import { verifyObject } from "../../src/store/verify-object.ts";

export interface StoreUnderTest {
  /** A store of its own for each name: the same name gives the same objects, opened anew. */
  open(name: string): Promise<OpenedStore>;
  /** Puts other bytes of the same length behind the store's back, as a rotten disk would. */
  spoil(name: string, key: string): Promise<void>;
  expected: Omit<StoreTraits, "notes">;
}

/** Everything that store.ts promises, for whatever implements it; traits may differ, promises may not. */
export function storeConformance(title: string, prepare: () => Promise<StoreUnderTest>): void {
  describe(title, () => {
    const under = once(prepare);
    const open = async (name: string) => (await under()).open(name);

    it("gives back what was put, whole and by ranges", async () => {
      const store = await open("roundtrip");
      const body = randomBytes(100_000);
      expect(await put(store, "packs/0a3/00000012.safetensors", body)).toMatchObject({ kind: "created" });
      const key = "packs/0a3/00000012.safetensors";
      expect((await store.get(key, null))!.equals(body)).toBe(true);
      for (const [startByte, endByte] of [
        [0, 1],
        [0, 100_000],
        [99_999, 100_000],
        [4_096, 65_537],
      ] as const) {
        const part = await store.get(key, { startByte, endByte });
        expect(part!.equals(body.subarray(startByte, endByte))).toBe(true);
      }
      expect((await store.get(key, { startByte: 5, endByte: 5 }))!.length).toBe(0);
      store.close();
    });

    it("carries 64 MiB and an object of no bytes", async () => {
      const store = await open("sizes");
      const big = randomBytes(64 * 2 ** 20);
      await put(store, "big", big);
      await put(store, "empty", Buffer.alloc(0));
      expect((await store.head("big"))!.bytes).toBe(big.length);
      expect(crc32c((await store.get("big", null))!)).toBe(crc32c(big));
      expect((await store.head("empty"))!.bytes).toBe(0);
      expect((await store.get("empty", null))!.length).toBe(0);
      const { expected } = await under();
      const md5 = md5Of(big);
      const object = { key: "big", bytes: big.length, crc32c: crc32c(big), md5 };
      expect(await verifyObject(store, expected, object)).toEqual({ kind: "same" });
      // Refused early, while most of the body is still on its way, it must still arrive as a refusal.
      if (expected.publish === "create-only")
        expect(await put(store, "big", big)).toEqual({ kind: "exists" });
      await store.delete("big");
      store.close();
    });

    it("says null for what is not there, and removes it without complaint", async () => {
      const store = await open("absent");
      expect(await store.head("packs/000/00000001.safetensors")).toBeNull();
      expect(await store.get("packs/000/00000001.safetensors", null)).toBeNull();
      expect(await store.get("packs/000/00000001.safetensors", { startByte: 0, endByte: 10 })).toBeNull();
      await store.delete("packs/000/00000001.safetensors");
      expect(await keys(store.list(""))).toEqual([]);
      store.close();
    });

    it("refuses a range that the object does not have", async () => {
      const store = await open("range");
      await put(store, "short", Buffer.from("0123456789"));
      for (const range of [
        { startByte: 5, endByte: 11 },
        { startByte: 100, endByte: 200 },
      ]) {
        await expect(store.get("short", range)).rejects.toMatchObject({ kind: "corrupt-answer" });
      }
      store.close();
    });

    it("replaces an object only where that was asked for", async () => {
      const store = await open("replace");
      await put(store, "status/1-of-1.json", Buffer.from("one"), false);
      await put(store, "status/1-of-1.json", Buffer.from("three"), false);
      expect((await store.get("status/1-of-1.json", null))!.toString()).toBe("three");
      const { expected } = await under();
      const again = await put(store, "status/1-of-1.json", Buffer.from("four!"));
      const kept = (await store.get("status/1-of-1.json", null))!.toString();
      if (expected.publish === "create-only") expect([again.kind, kept]).toEqual(["exists", "three"]);
      else expect([again.kind, kept]).toEqual(["created", "four!"]);
      store.close();
    });

    it("lists every object below a prefix once, with its size, over many pages", async () => {
      const store = await open("list");
      const wanted = Array.from({ length: 1_100 }, (_, batch) => packKey(batch));
      await inLanes(16, wanted, (key, i) => put(store, key, Buffer.alloc(i % 7, i)));
      await put(store, "run.json", Buffer.from("{}"));
      const listed: ObjectInfo[] = [];
      for await (const info of store.list("packs/")) listed.push(info);
      expect(listed.map((info) => info.key).sort()).toEqual([...wanted].sort());
      for (const info of listed) expect(info.bytes).toBe(wanted.indexOf(info.key) % 7);
      const lanes = await Promise.all(packLanes().map((lane) => keys(store.list(lane))));
      expect(lanes.flat().sort()).toEqual([...wanted].sort());
      expect(await keys(store.list("run"))).toEqual(["run.json"]);
      expect(await keys(store.list("packs/zzz"))).toEqual([]);
      store.close();
    });

    it("names folders without walking them", async () => {
      const store = await open("folders");
      for (const key of ["a/run.json", "a/packs/1", "b/run.json", "top"]) {
        await put(store, key, Buffer.from("x"));
      }
      expect((await collect(store.folders(""))).sort()).toEqual(["a", "b"]);
      expect(await collect(store.folders("a/"))).toEqual(["packs"]);
      store.close();
    });

    it("shows runs beside each other only their own objects, also where one name begins with the other", async () => {
      const [one, longer] = await Promise.all([open("name"), open("name-2")]);
      await put(one, "run.json", Buffer.from("1"));
      await put(longer, "run.json", Buffer.from("22"));
      await put(longer, "packs/x", Buffer.from("22"));
      expect(await keys(one.list(""))).toEqual(["run.json"]);
      expect((await keys(longer.list(""))).sort()).toEqual(["packs/x", "run.json"]);
      one.close();
      longer.close();
    });

    it("says what the server knows of an object, and null for the rest", async () => {
      const store = await open("info");
      const body = randomBytes(1_000);
      await put(store, "x", body);
      const info = (await store.head("x"))!;
      expect(info).toMatchObject({ key: "x", bytes: 1_000 });
      // Clocks of one machine: the object is no older than this test and not from the future.
      expect(Math.abs(info.lastModifiedMs! - Date.now())).toBeLessThan(60_000);
      expect(Math.abs(info.serverDateMs! - Date.now())).toBeLessThan(60_000);
      if (info.crc32c !== null) expect(info.crc32c).toBe(crc32c(body));
      store.close();
    });

    it("refuses bytes that do not match their checksum, where the probe says so", async () => {
      const store = await open("wrong-checksum");
      const { expected } = await under();
      const body = randomBytes(1_000);
      const attempt = store.put("x", body, { crc32c: crc32c(body) ^ 1, createOnly: true });
      if (expected.refusesWrongChecksum) {
        await expect(attempt).rejects.toMatchObject({ kind: "refused-checksum", remedy: "retry" });
        expect(await store.head("x")).toBeNull();
      } else {
        expect((await attempt).kind).toBe("created");
      }
      store.close();
    });

    it("is found by the probe to be what it is, and holds nothing of it afterwards", async () => {
      const store = await open("probe");
      const { expected } = await under();
      const traits = await probeStore(store, { log: silentLog, random: Math.random, deadlineMs: 20_000 });
      expect(traits).toMatchObject(expected);
      const isWeaker =
        traits.publish === "overwrite" || !traits.refusesWrongChecksum || traits.verify === "readback";
      expect(traits.notes.length > 0).toBe(isWeaker);
      expect(await keys(store.list(""))).toEqual([]);
      store.close();
    });

    it("is caught by the separate check when the stored bytes change or vanish", async () => {
      const store = await open("spoiled");
      const { spoil, expected } = await under();
      const body = randomBytes(50_000);
      const object = { key: "x", bytes: body.length, crc32c: crc32c(body), md5: md5Of(body) };
      await put(store, "x", body);
      expect(await verifyObject(store, expected, object)).toEqual({ kind: "same" });
      expect(await verifyObject(store, { verify: "readback" }, object)).toEqual({ kind: "same" });
      await spoil("spoiled", "x");
      expect(await verifyObject(store, expected, object)).toMatchObject({ kind: "different" });
      expect(await verifyObject(store, { verify: "readback" }, object)).toMatchObject({ kind: "different" });
      await store.delete("x");
      expect(await verifyObject(store, expected, object)).toEqual({ kind: "missing" });
      store.close();
    });

    it("lets exactly one of 16 create-only writers win, and keeps that one's bytes", async () => {
      const { expected } = await under();
      if (expected.publish !== "create-only") return;
      const stores = await Promise.all(Array.from({ length: 4 }, () => open("race")));
      for (let round = 0; round < 2; round += 1) {
        const bodies = Array.from({ length: 16 }, () => randomBytes(200_000));
        const outcomes = await Promise.all(
          bodies.map((body, i) => put(stores[i % 4]!, `race-${round}`, body)),
        );
        const winners = bodies.filter((_, i) => outcomes[i]!.kind === "created");
        expect(winners.length).toBe(1);
        expect((await stores[0]!.get(`race-${round}`, null))!.equals(winners[0]!)).toBe(true);
      }
      for (const store of stores) store.close();
    });

    it.each([
      "../escape",
      "a/../../escape",
      "/absolute",
      "a//b",
      "a/./b",
      "",
      "trailing/",
      "back\\slash",
      "nul\0byte",
      "line\nbreak",
      "ünicode",
      "x".repeat(2_000),
    ])("refuses the key %j everywhere, and touches nothing", async (key) => {
      const store = await open("traversal");
      const refused = { name: "RunError", message: expect.stringContaining("plain relative key") };
      await expect(put(store, key, Buffer.from("x"))).rejects.toMatchObject(refused);
      await expect(store.head(key)).rejects.toMatchObject(refused);
      await expect(store.get(key, null)).rejects.toMatchObject(refused);
      await expect(store.delete(key)).rejects.toMatchObject(refused);
      expect(await keys(store.list(""))).toEqual([]);
      store.close();
    });

    it("carries keys with spaces and signs unharmed", async () => {
      const store = await open("signs");
      const names = [
        "inputs/draft config (v2).json",
        "inputs/a+b=c@d,e;f&g",
        "checkpoints/12-ab/.metadata",
        "it's!*",
      ];
      for (const name of names) await put(store, name, Buffer.from(name));
      for (const name of names) expect((await store.get(name, null))!.toString()).toBe(name);
      expect((await keys(store.list(""))).sort()).toEqual([...names].sort());
      for (const name of names) await store.delete(name);
      expect(await keys(store.list(""))).toEqual([]);
      store.close();
    });

    it("stops at once when its caller aborts, with the caller's own reason", async () => {
      const store = await open("abort");
      await put(store, "x", Buffer.from("x"));
      const reason = new Error("enough");
      const signal = AbortSignal.abort(reason);
      await expect(store.head("x", signal)).rejects.toBe(reason);
      await expect(store.get("x", null, signal)).rejects.toBe(reason);
      await expect(keys(store.list("", signal))).rejects.toBe(reason);
      await expect(store.delete("x", signal)).rejects.toBe(reason);
      const body = randomBytes(1_000);
      await expect(store.put("y", body, { crc32c: crc32c(body), createOnly: true, signal })).rejects.toBe(
        reason,
      );
      expect(await store.head("y")).toBeNull();
      expect(await store.head("x")).not.toBeNull();
      store.close();
    });
  });
}

export function put(store: OpenedStore, key: string, body: Buffer, createOnly = true) {
  return store.put(key, body, { crc32c: crc32c(body), createOnly });
}

export async function keys(infos: AsyncIterable<ObjectInfo>): Promise<string[]> {
  return (await collect(infos)).map((info) => info.key);
}

async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of items) all.push(item);
  return all;
}

/** The StoreError that `call` must throw. */
export async function storeErrorOf(call: Promise<unknown>): Promise<StoreError> {
  const error = await call.then(
    () => new Error("nothing was thrown"),
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof StoreError)) throw error;
  return error;
}

async function inLanes<T>(
  lanes: number,
  items: T[],
  act: (item: T, i: number) => Promise<unknown>,
): Promise<void> {
  let next = 0;
  const lane = async () => {
    while (next < items.length) {
      const i = next++;
      await act(items[i]!, i);
    }
  };
  await Promise.all(Array.from({ length: lanes }, lane));
}

function md5Of(body: Buffer): string {
  return createHash("md5").update(body).digest("hex");
}

function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | null = null;
  return () => {
    made ??= make();
    return made;
  };
}

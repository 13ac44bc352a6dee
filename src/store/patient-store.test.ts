import { expect, test } from "vitest";
import { silentLog } from "../base/log.ts";
import { patientStore } from "./patient-store.ts";
import { type OpenedStore, StoreError } from "./store.ts";

test("a request that fails by the way is made again, one that a person must mend is not", async () => {
  let calls = 0;
  const failing = (kind: "unreachable" | "credentials") => async () => {
    calls += 1;
    if (calls === 3) return null;
    throw new StoreError({ kind, op: "get object", subject: "k", message: "broke" });
  };
  const store = { get: failing("unreachable"), head: failing("credentials") } as unknown as OpenedStore;
  const patient = patientStore(store, { log: silentLog, random: () => 0 });
  expect(await patient.get("k", null)).toBeNull();
  expect(calls).toBe(3);
  calls = 0;
  await expect(patient.head("k")).rejects.toMatchObject({ kind: "credentials" });
  expect(calls).toBe(1);
});

test("a list that breaks off goes on, and gives nothing twice; one that a person must mend ends", async () => {
  let begun = 0;
  /** Each time it comes one key further, and meanwhile a new object has appeared before the others. */
  const list = (kind: "unreachable" | "credentials") =>
    async function* () {
      begun += 1;
      if (begun > 1) yield { key: "a" };
      for (const key of ["b", "c", "d"].slice(0, begun)) yield { key };
      if (begun < 3) throw new StoreError({ kind, op: "list", subject: "k", message: "broke" });
    };
  const keysOf = async (kind: "unreachable" | "credentials") => {
    begun = 0;
    const store = { list: list(kind) } as unknown as OpenedStore;
    const keys: string[] = [];
    for await (const { key } of patientStore(store, { log: silentLog, random: () => 0 }).list(""))
      keys.push(key);
    return keys;
  };
  expect(await keysOf("unreachable")).toEqual(["b", "a", "c", "d"]);
  await expect(keysOf("credentials")).rejects.toMatchObject({ kind: "credentials" });
  expect(begun).toBe(1);
});

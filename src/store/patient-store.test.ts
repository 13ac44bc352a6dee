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

import type { VerbSpec } from "./verb.ts";

/**
 * The verbs by name, in the order in which a person meets them. A verb is loaded when it is asked for and not before:
 * each brings much of the program along, and all of them together are a third of a second.
 */
export const VERBS: Record<string, () => Promise<VerbSpec>> = {
  demo: async () => (await import("./demo.ts")).demo,
  init: async () => (await import("./init.ts")).init,
  doctor: async () => (await import("./doctor.ts")).doctor,
  tokenize: async () => (await import("./tokenize.ts")).tokenize,
  taps: async () => (await import("./taps.ts")).taps,
  plan: async () => (await import("./plan.ts")).plan,
  check: async () => (await import("./check.ts")).check,
  run: async () => (await import("./run.ts")).run,
  resume: async () => (await import("./run.ts")).resume,
  status: async () => (await import("./status.ts")).status,
  logs: async () => (await import("./logs.ts")).logs,
  stop: async () => (await import("./stop.ts")).stop,
  restart: async () => (await import("./restart.ts")).restart,
  set: async () => (await import("./set.ts")).set,
  ls: async () => (await import("./ls.ts")).ls,
  verify: async () => (await import("./verify.ts")).verify,
  read: async () => (await import("./read.ts")).read,
  export: async () => (await import("./export.ts")).exportVerb,
  supervise: async () => (await import("./supervise-verb.ts")).superviseVerb,
};

/** The verb that `word` names, alone; all of them where it names none, for the help and for what was meant. */
export async function verbsFor(word: string | undefined): Promise<VerbSpec[]> {
  // Answered without looking at any verb.
  if (word === "--version" || word === "-V") return [];
  if (word !== undefined && Object.hasOwn(VERBS, word)) return [await VERBS[word]!()];
  return Promise.all(Object.values(VERBS).map((load) => load()));
}

import { check } from "./check.ts";
import { demo } from "./demo.ts";
import { doctor } from "./doctor.ts";
import { exportVerb } from "./export.ts";
import { init } from "./init.ts";
import { logs } from "./logs.ts";
import { ls } from "./ls.ts";
import { plan } from "./plan.ts";
import { read } from "./read.ts";
import { restart } from "./restart.ts";
import { resume, run } from "./run.ts";
import { set } from "./set.ts";
import { status } from "./status.ts";
import { stop } from "./stop.ts";
import { superviseVerb } from "./supervise-verb.ts";
import { taps } from "./taps.ts";
import { tokenize } from "./tokenize.ts";
import type { VerbSpec } from "./verb.ts";
import { verify } from "./verify.ts";

/** In the order in which a person meets them. */
export const VERBS: VerbSpec[] = [
  demo,
  init,
  doctor,
  tokenize,
  taps,
  plan,
  check,
  run,
  resume,
  status,
  logs,
  stop,
  restart,
  set,
  ls,
  verify,
  read,
  exportVerb,
  superviseVerb,
];

import type { Recording } from "./simulated-run.mjs";

export const RECORDINGS: string;
export function readRecordings(): { name: string; recording: Recording }[];

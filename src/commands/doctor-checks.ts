/** One thing that was looked at: what was found, and what to do about it. */
export interface Finding {
  about: "store" | "spool" | "model" | "engine" | "gpu";
  state: "ok" | "weak" | "broken";
  found: string;
  /** null where nothing is to be done. */
  fix: string | null;
  /** Numbers for --json. */
  figures?: Record<string, number>;
}

export function ok(about: Finding["about"], found: string, figures?: Finding["figures"]): Finding {
  return { about, state: "ok", found, fix: null, figures };
}

export function weak(
  about: Finding["about"],
  found: string,
  fix: string,
  figures?: Finding["figures"],
): Finding {
  return { about, state: "weak", found, fix, figures };
}

export function broken(about: Finding["about"], found: string, fix: string): Finding {
  return { about, state: "broken", found, fix };
}

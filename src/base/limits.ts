/** Connections to the store: a person may ask for so many, and no process can feed more. */
export const UPLOADS_MAX = 1_000;

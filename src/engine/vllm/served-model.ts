import { realpathSync } from "node:fs";
import { basename } from "node:path";
import { plainText } from "../../base/log.ts";
import type { ServedModel } from "./client.ts";
import { refused } from "./failure.ts";

/**
 * The model among those that a server has loaded which `directory` holds: by its path, its hub id, or the name that
 * the path ends in. Throws where none is it: states of another model train a drafter for nobody.
 */
export function findServedModel(models: readonly ServedModel[], directory: string): ServedModel {
  const names = namesOf(directory);
  const found = models.find(({ id, root }) => names.has(id) || (root !== null && names.has(root)));
  if (found) return found;
  const byLastName = models.filter(({ id, root }) =>
    [id, root ?? id].some((name) => names.has(basename(name)) && basename(name).length > 0),
  );
  if (byLastName[0]) return byLastName[0];
  const served = models.map(({ id }) => plainText(id, 80)).join(", ");
  const name = basename(directory);
  throw refused(
    `the server serves ${served}, expected ${name}: start it with that model, or with --served-model-name ${name} if it is`,
  );
}

/** What a server may call the model of `directory`. */
function namesOf(directory: string): Set<string> {
  const names = new Set([directory, basename(directory)]);
  try {
    names.add(realpathSync(directory));
  } catch {
    // Not there: reading its config.json has told so already.
  }
  for (const path of [...names]) {
    // Source: huggingface_hub, "Understand caching": models--ORG--NAME/snapshots/COMMIT.
    const cached = /\/models--([^/]+?)--([^/]+)\/snapshots\/[^/]+\/?$/.exec(path);
    if (cached) {
      names.add(`${cached[1]}/${cached[2]}`);
      names.add(cached[2]!);
    }
  }
  return names;
}

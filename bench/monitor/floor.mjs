// The least that an answer can take here and now: a process that does nothing but give the same bytes to who asks.
import { createServer } from "node:http";

const body = Buffer.alloc(Number(process.argv[2]), "x");
const server = createServer((_, outgoing) => outgoing.end(body));
server.listen(0, "127.0.0.1", () => process.send({ port: server.address().port }));

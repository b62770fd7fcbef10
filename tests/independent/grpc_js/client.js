// Asks a guest through a proxy with @grpc/grpc-js and prints what it got: one JSON object for each question on stdin.
//
//     node client.js TARGET PROTO_DIR...       stdin: lines of {"service", "method", "request"}
//
// Each answer is {"replies": [...]} or {"code": N, "details": "..."}. Field names are the proto's, 64-bit integers are strings, bytes base64;
// what is not set is not there.
'use strict';
const readline = require('node:readline');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [target, ...includeDirs] = process.argv.slice(2);
const definition = loader.loadSync(['guest_api/guest_api.proto', 'guest_fleet/v1/fleet.proto'], {
  includeDirs,
  keepCase: true,
  longs: String,
  bytes: String,
  enums: String,
});
const packages = grpc.loadPackageDefinition(definition);
const clients = new Map();

function client(service) {
  if (!clients.has(service)) {
    const Service = service.split('.').reduce((at, name) => at[name], packages);
    clients.set(service, new Service(target, grpc.credentials.createInsecure()));
  }
  return clients.get(service);
}

function ask({ service, method, request }) {
  const deadline = Date.now() + 20000;
  const of = client(service);
  return new Promise((resolve) => {
    const failed = (error) => resolve({ code: error.code, details: error.details });
    if (of[method].responseStream) {
      const replies = [];
      of[method](request, { deadline })
        .on('data', (reply) => replies.push(reply))
        .on('error', failed)
        .on('end', () => resolve({ replies }));
    } else {
      of[method](request, { deadline }, (error, reply) => (error ? failed(error) : resolve({ replies: [reply] })));
    }
  });
}

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await ask(JSON.parse(line))));
  }
  for (const each of clients.values()) each.close();
})();

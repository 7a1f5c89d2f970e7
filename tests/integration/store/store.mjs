// An object store for tests, on a loopback port: node store.mjs FOLDER API_SOCKET SECRET BUCKET...
//
// s3rver is the store: it keeps objects in FOLDER and says what it stored. It does not check signatures of version 4; here aws4 does. This
// program sends what was stored to the source `store` of a mesh, as MinIO's webhook target does: again until it is answered 202, and once
// more after that, as after a lost answer. The keys are S3RVER and S3RVER. STORE_MODULES is the folder of both modules. Writes the port
// once it listens, then a line of JSON for each object that was stored and announced.

import http from 'node:http';
import { createRequire } from 'node:module';

const require = createRequire(`${process.env.STORE_MODULES}/`);
const [S3rver, aws4] = [require('s3rver'), require('aws4')];
const KEYS = { accessKeyId: 'S3RVER', secretAccessKey: 'S3RVER' };
const [directory, socketPath, secret, ...buckets] = process.argv.slice(2);

// Keys in notifications are encoded as in forms.
const encoded = (key) => encodeURIComponent(key).replaceAll('%2F', '/').replaceAll('%20', '+');

const post = (body) => new Promise((resolve) => {
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${secret}` };
  const request = http.request({ socketPath, path: '/v1/in/store', method: 'POST', headers }, (response) => {
    let text = '';
    response.on('data', (part) => { text += part; });
    response.on('end', () => resolve({ status: response.statusCode, text }));
    response.on('error', (error) => resolve({ text: error.message }));
  });
  request.on('error', (error) => resolve({ text: error.message }));
  request.end(body);
});

const pause = () => new Promise((resolve) => { setTimeout(resolve, 200); });

async function announce(notification) {
  const [record] = notification.Records;
  const { bucket, object } = record.s3;
  const { key } = object;
  object.key = encoded(key);
  const body = JSON.stringify(notification);
  const ids = [];
  while (ids.length < 2) {
    const { status, text } = await post(body);
    if (status === 202) ids.push(...JSON.parse(text).ids);
    else {
      console.error(`${bucket.name}/${key}: ${status ?? ''} ${text}`);
      await pause();
    }
  }
  console.log(JSON.stringify({ event: record.eventName, bucket: bucket.name, key, ids }));
}

// Only requests that the owner of the keys has signed.
async function check(ctx, next) {
  const { authorization = '', ...headers } = ctx.req.headers;
  const names = /SignedHeaders=([^,]*)/.exec(authorization)?.[1].split(';') ?? [];
  const signed = Object.fromEntries(names.map((name) => [name, headers[name]]));
  const request = { service: 's3', region: 'us-east-1', method: ctx.method, path: ctx.req.url, headers: signed };
  if (authorization !== aws4.sign(request, KEYS).headers.Authorization) ctx.throw(403, 'signature');
  await next();
}

const store = new S3rver({
  address: '127.0.0.1',
  port: 0,
  silent: true,
  directory,
  configureBuckets: buckets.map((name) => ({ name })),
});
store.middleware.unshift(check);
store.on('event', announce);
const { port } = await store.run();
console.log(port);

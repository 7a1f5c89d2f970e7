// An OIDC provider for tests, on a loopback port: node provider.mjs PORT KEYS.json
//
// oidc-provider does what is right; `/forge` signs what a provider never would, with the provider's own keys or as a forger would.
// OIDC_PROVIDER names the module of oidc-provider. Writes KEYS.json if it is not there, and "ready" once it listens.

import crypto from 'node:crypto';
import fs from 'node:fs';
import http from 'node:http';
import { pathToFileURL } from 'node:url';

const { Provider } = await import(pathToFileURL(process.env.OIDC_PROVIDER));
const [port, file] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;

if (!fs.existsSync(file)) {
  const tag = crypto.randomBytes(4).toString('hex');
  const made = {
    RS256: crypto.generateKeyPairSync('rsa', { modulusLength: 2048 }),
    ES256: crypto.generateKeyPairSync('ec', { namedCurve: 'P-256' }),
    EdDSA: crypto.generateKeyPairSync('ed25519'),
  };
  const jwks = Object.entries(made).map(([alg, { privateKey }]) => ({
    ...privateKey.export({ format: 'jwk' }), alg, use: 'sig', kid: `${alg}-${tag}`,
  }));
  fs.writeFileSync(file, JSON.stringify(jwks));
}
const keys = JSON.parse(fs.readFileSync(file));

// Whoever asks as `NAME` is of the group that the name begins with: audit-1 of `audit`.
const clients = ['alice', 'carol', 'dave', 'stranger', 'audit-1', 'admins-1'].map((client_id) => ({
  client_id, client_secret: 'secret', grant_types: ['client_credentials'], redirect_uris: [], response_types: [],
}));
const provider = new Provider(issuer, {
  clients,
  jwks: { keys },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      // urn:mesh:ES256: a token for the audience `mesh`, signed so.
      getResourceServerInfo: (_, resource) => ({
        scope: 'read', audience: resource.split(':')[1], accessTokenTTL: 300, accessTokenFormat: 'jwt',
        jwt: { sign: { alg: resource.split(':')[2] } },
      }),
    },
  },
  extraTokenClaims: (_, token) => ({ groups: [token.clientId.split('-')[0]], preferred_username: token.clientId }),
});

const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
const signatures = {
  RS256: (text, key) => crypto.sign('sha256', text, key),
  ES256: (text, key) => crypto.sign('sha256', text, { key, dsaEncoding: 'ieee-p1363' }),
  EdDSA: (text, key) => crypto.sign(null, text, key),
  none: () => Buffer.alloc(0),
  // The public key, which everybody knows, as if it were a secret.
  HS256: (text, key) => crypto.createHmac('sha256', crypto.createPublicKey(key).export({ type: 'spki', format: 'pem' })).update(text).digest(),
};
function forge({ header, claims, key }) {
  const jwk = keys.find((one) => one.alg === key);
  const own = crypto.createPrivateKey({ key: jwk, format: 'jwk' });
  const text = `${part({ typ: 'at+jwt', alg: key, kid: jwk.kid, ...header })}.${part(claims)}`;
  const sign = signatures[header.alg ?? key];
  return `${text}.${sign(Buffer.from(text), own).toString('base64url')}`;
}

let fetched = 0;
const callback = provider.callback();
http.createServer((request, response) => {
  if (request.url === '/fetched') return response.end(String(fetched));
  if (request.url === '/forge') {
    let body = '';
    request.on('data', (data) => { body += data; });
    request.on('end', () => response.end(forge(JSON.parse(body))));
    return undefined;
  }
  if (request.url === '/jwks') fetched += 1;
  return callback(request, response);
}).listen(Number(port), '127.0.0.1', () => console.log('ready'));

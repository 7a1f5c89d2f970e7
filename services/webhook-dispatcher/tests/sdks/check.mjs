// Reads {"target", …} lines, checks each as its target would, and writes what is wrong, one line each; at the end the number of lines.
// The folder that has node_modules is the argument.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const require = createRequire(join(process.argv[2], 'package.json'));
// The ES modules' entry of adaptivecards does not load in Node.
const cards = require('adaptivecards/dist/adaptivecards.js');
const Ajv = require('ajv').default;
const { Webhook } = require('standardwebhooks');
const discord = await import(pathToFileURL(join(process.argv[2], 'node_modules/discord-api-spec/build/discord-api-spec.zod.js')));

const schemas = (name) => JSON.parse(readFileSync(new URL(`schemas/${name}.json`, import.meta.url)));
const ajv = new Ajv({ allErrors: true });
const bySchema = Object.fromEntries(
  Object.entries({ ...schemas('github'), ...schemas('pagerduty') })
    .filter(([name]) => !name.startsWith('$'))
    .map(([name, schema]) => [name, ajv.compile(schema)]),
);

function teams({ body }) {
  const [attachment] = body.attachments;
  if (body.type !== 'message' || attachment.contentType !== 'application/vnd.microsoft.card.adaptive') return ['no message with a card'];
  const context = new cards.SerializationContext(cards.Versions.v1_4);
  const card = new cards.AdaptiveCard();
  card.parse(attachment.content, context);
  const faults = card.validateProperties().validationEvents.map((event) => event.message);
  for (let i = 0; i < context.eventCount; i++) faults.push(context.getEventAt(i).message);
  if (card.getItemCount() !== attachment.content.body.length) faults.push('an element was not understood');
  return faults;
}

function check(line) {
  switch (line.target) {
    case 'teams':
      return teams(line);
    case 'discord': {
      const result = discord.IncomingWebhookRequestPartialSchema.safeParse(line.body);
      return result.success ? [] : result.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`);
    }
    case 'signature':
      try {
        new Webhook(line.secret).verify(line.body, line.headers);
        return [];
      } catch (error) {
        return [String(error)];
      }
    default: {
      const validate = bySchema[line.target];
      if (!validate) return ['nothing checks this target'];
      return validate(line.body) ? [] : [ajv.errorsText(validate.errors)];
    }
  }
}

let count = 0;
for await (const text of createInterface({ input: process.stdin })) {
  count += 1;
  const line = JSON.parse(text);
  for (const fault of check(line)) console.log(`line ${count}, ${line.target}: ${fault}`);
}
console.log(`checked ${count}`);

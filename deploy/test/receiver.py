"""A webhook receiver: verifies each request with the Standard Webhooks library and appends a line of JSON to a file.

receiver.py ADDRESS PORT SECRET FILE
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

address, port, secret, path = sys.argv[1:]
log = open(path, "a", buffering=1, encoding="utf-8")


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            event = Webhook(secret).verify(body, dict(self.headers.items()))
            line = {"id": self.headers["webhook-id"], "type": event["type"]}
        except WebhookVerificationError as error:
            line = {"unverified": str(error)}
        log.write(json.dumps(line) + "\n")
        self.send_response(400 if "unverified" in line else 204)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


ThreadingHTTPServer((address, int(port)), Receiver).serve_forever()

//! Events of a text/event-stream.

use std::pin::Pin;

use futures_util::Stream;
use futures_util::stream::try_unfold;
use serde_json::Value;

use super::Download;
use crate::error::Error;

/// Path of the stream of ledger entries.
pub(super) const ENTRY_STREAM: &str = "/v1/events/stream";

/// Stream of ledger entries as they are appended.
pub type Entries = Pin<Box<dyn Stream<Item = Result<Value, Error>> + Send>>;

/// Reads the entries of a stream as they arrive.
pub(super) fn entries(download: Download) -> Entries {
    let state = (download, Vec::new());
    Box::pin(try_unfold(state, async |(mut download, mut text)| {
        loop {
            if let Some(value) = next_entry(&mut text)? {
                return Ok(Some((value, (download, text))));
            }
            match download.next().await? {
                None => return Ok(None),
                Some(data) => text.extend_from_slice(&data),
            }
        }
    }))
}

/// Takes the next event from a text/event-stream. `None` if no complete event has arrived. Comments only keep the connection alive.
fn next_entry(received: &mut Vec<u8>) -> Result<Option<Value>, Error> {
    while let Some(end) = received.windows(2).position(|pair| pair == b"\n\n") {
        // Complete blocks only: the network may split a character, but never in a blank line.
        let block: Vec<u8> = received.drain(..end + 2).collect();
        let block = String::from_utf8_lossy(&block);
        let data: String = block
            .lines()
            .filter_map(|line| line.strip_prefix("data:"))
            .map(str::trim_start)
            .collect();
        if !data.is_empty() {
            return serde_json::from_str(&data)
                .map(Some)
                .map_err(|error| Error::Answer(error.to_string()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_out_of_a_stream_at_any_point() {
        let mut text = Vec::new();
        let mut found = Vec::new();
        for piece in [
            ": hello\n",
            "\nid: 1\ndata: {\"seq\"",
            ":1}\n\nid: 2\nda",
            "ta: {\"seq\":2}\n\n: k\n\n",
        ] {
            text.extend_from_slice(piece.as_bytes());
            while let Some(value) = next_entry(&mut text).unwrap() {
                found.push(value["seq"].as_u64().unwrap());
            }
        }
        assert_eq!(found, [1, 2]);
    }
}

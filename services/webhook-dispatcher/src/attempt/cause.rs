//! Categories of failed attempts, and who can fix them.

use event_message::outcome::Outcome;

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The receiver refused it: a 4xx, or a redirect.
    Refused,
    /// The receiver accepts no more events.
    Gone,
    /// The address is unknown or forbidden.
    Address,
    /// TLS failed: no trust, or no agreement between client and server.
    Tls,
    /// The receiver fails: a 5xx and the like.
    Failing,
    /// The receiver requires fewer requests.
    Limited,
    /// No connection, or it broke.
    Unreachable,
    /// No response in time.
    Timeout,
    /// The operator's proxy opened no connection.
    Proxy,
    /// The format or template cannot render the event.
    Content,
    /// The dispatcher could not make a request.
    Internal,
    /// The endpoint was removed.
    Removed,
}

/// Who can fix the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponsibleParty {
    /// The owner of the endpoint.
    Owner,
    /// The receiver, or the network in between.
    Receiver,
    /// The dispatcher, or its operator.
    Dispatcher,
}

impl ResponsibleParty {
    /// Label value in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Receiver => "receiver",
            Self::Dispatcher => "dispatcher",
        }
    }
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 12] = [
        Self::Refused,
        Self::Gone,
        Self::Address,
        Self::Tls,
        Self::Failing,
        Self::Limited,
        Self::Unreachable,
        Self::Timeout,
        Self::Proxy,
        Self::Content,
        Self::Internal,
        Self::Removed,
    ];

    /// Value in the database, the API and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Gone => "gone",
            Self::Address => "address",
            Self::Tls => "tls",
            Self::Failing => "failing",
            Self::Limited => "limited",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Proxy => "proxy",
            Self::Content => "content",
            Self::Internal => "internal",
            Self::Removed => "removed",
        }
    }

    /// The word of a cause, empty without one.
    pub fn word(cause: Option<Self>) -> &'static str {
        cause.map_or("", Self::as_str)
    }

    /// Parses the value of a cause.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == word)
    }

    /// Who can fix it.
    pub const fn side(self) -> ResponsibleParty {
        match self {
            Self::Refused | Self::Gone | Self::Address | Self::Content | Self::Removed => {
                ResponsibleParty::Owner
            }
            Self::Tls | Self::Failing | Self::Limited | Self::Unreachable | Self::Timeout => {
                ResponsibleParty::Receiver
            }
            Self::Proxy | Self::Internal => ResponsibleParty::Dispatcher,
        }
    }

    /// The cause of a response. `None` if it was successful. Status 0: no request was sent.
    pub const fn of_answer(outcome: &Outcome, status: u16) -> Option<Self> {
        match (outcome, status) {
            (Outcome::Delivered, _) => None,
            (Outcome::Gone { .. }, _) => Some(Self::Gone),
            (Outcome::Permanent { .. }, 0) => Some(Self::Content),
            (Outcome::Permanent { .. }, _) => Some(Self::Refused),
            // GitHub sends 403 for rate limits, with the time of the reset.
            (Outcome::Retry { .. }, 403 | 429) => Some(Self::Limited),
            (Outcome::Retry { .. }, _) => Some(Self::Failing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back_and_statuses_are_told_apart() {
        for cause in Cause::ALL {
            assert_eq!(Cause::parse(cause.as_str()), Some(cause));
        }
        assert_eq!(Cause::parse(""), None);
        let of = |status| {
            Cause::of_answer(&Outcome::of_status(status, None), status)
                .map(|cause| (cause.as_str(), cause.side()))
        };
        assert_eq!(of(204), None);
        assert_eq!(of(404), Some(("refused", ResponsibleParty::Owner)));
        assert_eq!(of(301), Some(("refused", ResponsibleParty::Owner)));
        assert_eq!(of(410), Some(("gone", ResponsibleParty::Owner)));
        assert_eq!(of(429), Some(("limited", ResponsibleParty::Receiver)));
        assert_eq!(of(503), Some(("failing", ResponsibleParty::Receiver)));
        assert_eq!(of(403), Some(("refused", ResponsibleParty::Owner)));
        let limited = Outcome::Retry { after: None };
        assert_eq!(Cause::of_answer(&limited, 403), Some(Cause::Limited));
        let unsendable = Outcome::Permanent {
            reason: String::new(),
        };
        assert_eq!(Cause::of_answer(&unsendable, 0), Some(Cause::Content));
    }
}

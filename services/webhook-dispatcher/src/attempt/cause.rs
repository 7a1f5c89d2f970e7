//! Categories of failed attempts, and who can fix them.

use event_message::attempt_outcome::Outcome;
use guarded_http::FailureKind;

use crate::string_enum::string_enum;

string_enum! {
    /// Why an attempt failed.
    pub enum Cause {
        /// The receiver refused it: a 4xx, or a redirect.
        Refused = "refused",
        /// The receiver accepts no more events.
        Gone = "gone",
        /// The address is unknown or forbidden.
        Address = "address",
        /// TLS failed: no trust, or no agreement between client and server.
        Tls = "tls",
        /// The receiver fails: a 5xx and the like.
        Failing = "failing",
        /// The receiver requires fewer requests.
        Limited = "limited",
        /// No connection, or it broke.
        Unreachable = "unreachable",
        /// No response in time.
        Timeout = "timeout",
        /// The operator's proxy opened no connection.
        Proxy = "proxy",
        /// The format or template cannot render the event.
        Content = "content",
        /// The dispatcher could not make a request.
        Internal = "internal",
        /// The endpoint was removed.
        Removed = "removed",
    }
}

string_enum! {
    /// Who can fix the cause.
    pub enum ResponsibleParty {
        /// The owner of the endpoint.
        Owner = "owner",
        /// The receiver, or the network in between.
        Receiver = "receiver",
        /// The dispatcher, or its operator.
        Dispatcher = "dispatcher",
    }
}

impl From<FailureKind> for Cause {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Address => Self::Address,
            FailureKind::Tls => Self::Tls,
            FailureKind::Unreachable => Self::Unreachable,
            FailureKind::Timeout => Self::Timeout,
            FailureKind::Proxy => Self::Proxy,
            FailureKind::Internal => Self::Internal,
        }
    }
}

impl Cause {
    /// The string of a cause, empty without one.
    pub fn str_of(cause: Option<Self>) -> &'static str {
        cause.map_or("", Self::as_str)
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
    fn strings_are_read_back_and_statuses_are_told_apart() {
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

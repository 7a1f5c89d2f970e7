//! squeue's `--Format`: `name[:[.][width][suffix]]`, separated by commas (opts.c of squeue, 22.05 to 26.05).
//!
//! squeue prints such a field with the same function as the letter of `--format`, so it is translated into that.

/// Width of a field without one.
const DEFAULT_WIDTH: &str = "20";
/// Names of fields, and their letters. Others have no letter, and are not in the list of jobs.
const LETTERS: [(&str, char); 52] = [
    ("account", 'a'),
    ("arrayjobid", 'F'),
    ("arraytaskid", 'K'),
    ("batchhost", 'B'),
    ("command", 'o'),
    ("comment", 'k'),
    ("contiguous", 'O'),
    ("cores", 'I'),
    ("corespec", 'X'),
    ("dependency", 'E'),
    ("endtime", 'e'),
    ("feature", 'f'),
    ("gres", 'b'),
    ("groupid", 'G'),
    ("groupname", 'g'),
    ("jobarrayid", 'i'),
    ("jobid", 'A'),
    ("licenses", 'W'),
    ("mincpus", 'c'),
    ("minmemory", 'm'),
    ("mintmpdisk", 'd'),
    ("name", 'j'),
    ("nice", 'y'),
    ("nodelist", 'N'),
    ("numcpus", 'C'),
    ("numnodes", 'D'),
    ("oversubscribe", 'h'),
    ("partition", 'P'),
    ("priority", 'p'),
    ("prioritylong", 'Q'),
    ("qos", 'q'),
    ("reason", 'r'),
    ("reasonlist", 'R'),
    ("reqnodes", 'n'),
    ("reservation", 'v'),
    ("schednodes", 'Y'),
    ("sct", 'z'),
    ("shared", 'h'),
    ("sockets", 'H'),
    ("starttime", 'S'),
    ("state", 'T'),
    ("statecompact", 't'),
    ("submittime", 'V'),
    ("threads", 'J'),
    ("timeleft", 'L'),
    ("timelimit", 'l'),
    ("timeused", 'M'),
    ("tres-per-node", 'b'),
    ("userid", 'U'),
    ("username", 'u'),
    ("wckey", 'w'),
    ("workdir", 'Z'),
];

/// The same in the form of `--format`. `None` if only squeue knows.
pub(super) fn in_letters(fields: &str) -> Option<String> {
    let mut format = String::new();
    for field in fields.split(',') {
        let (name, shape) = field.split_once(':').unwrap_or((field, DEFAULT_WIDTH));
        let known = |(other, _): &&(&str, char)| name.eq_ignore_ascii_case(other);
        let (_, letter) = LETTERS.iter().find(known)?;
        let (dot, rest) = match shape.strip_prefix('.') {
            Some(rest) => (".", rest),
            None => ("", shape),
        };
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (width, suffix) = rest.split_at(digits);
        // strtol would skip a space and a sign in front of the number, and `%` begins a field here.
        let is_odd = width.is_empty() && suffix.starts_with([' ', '\t', '+', '-']);
        if is_odd || suffix.contains('%') {
            return None;
        }
        format.push('%');
        format.push_str(dot);
        format.push_str(width);
        format.push(*letter);
        format.push_str(suffix);
    }
    Some(format)
}

#[cfg(test)]
mod tests {
    use super::in_letters;

    #[test]
    fn fields_become_letters() {
        for (fields, format) in [
            ("jobid", "%20A"),
            ("JobArrayID:.10,State:|,tres-per-node:5x", "%.10i%T|%5bx"),
        ] {
            assert_eq!(in_letters(fields).as_deref(), Some(format));
        }
    }

    #[test]
    fn what_is_not_certain_is_left_to_squeue() {
        for fields in ["", "jobid,", "stdout", "jobid: 3", "jobid:-3", "jobid:5%"] {
            assert_eq!(in_letters(fields), None, "{fields}");
        }
    }
}

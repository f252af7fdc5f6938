//! Bounds on policy text, checked before Cedar's parser sees it.
//!
//! Cedar parses and evaluates by recursion. The parser has no depth limit, so that a deep text overflows the stack,
//! which ends the process; and a policy that runs out of stack while it is evaluated is skipped, which for a forbid
//! means that it is gone. The scanner knows strings, comments and brackets, nothing of the grammar: what it lets through
//! that is not Cedar the parser refuses.
//!
//! The limits are far above what a person writes, and leave three quarters of an 8 MiB stack unused, in debug builds too
//! (`the_deepest_text_that_is_allowed_fits_the_stack`).

use std::ops::Range;

/// Bytes of one policy, comments before it included.
pub const MAX_POLICY_BYTES: usize = 64 << 10;
/// Bytes of all files.
pub const MAX_TOTAL_BYTES: usize = 8 << 20;
/// Policies of all files.
pub const MAX_POLICIES: usize = 10_000;
/// Brackets, `if` and prefix operators inside one another.
pub const MAX_NESTING: usize = 64;
/// Operators of one policy: each adds a level to the tree when they are chained.
pub const MAX_OPERATORS: usize = 256;

/// A limit that is passed, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Excess {
    pub(super) offset: usize,
    pub(super) sentence: String,
}

/// Where each statement starts (its first token) and ends (after the `;`), in order.
pub(super) fn scan(text: &str, max_statement_bytes: usize) -> Result<Vec<Range<usize>>, Excess> {
    let mut scanner = Scanner { text: text.as_bytes(), max_statement_bytes, ..Scanner::default() };
    while scanner.at < scanner.text.len() {
        scanner.token()?;
    }
    scanner.end_statement()?;
    Ok(scanner.statements)
}

/// A bracket that is open.
#[derive(Default)]
struct Frame {
    /// Itself and the prefix operators before it.
    weight: usize,
    /// `if`s since the last comma: each holds all that follows.
    ifs: usize,
}

#[derive(Default)]
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    max_statement_bytes: usize,
    statements: Vec<Range<usize>>,
    /// Start of the current statement with its comments.
    from: usize,
    /// Its first token.
    first: Option<usize>,
    frames: Vec<Frame>,
    /// Sum over the frames.
    depth: usize,
    /// `!` and `-` directly before this place.
    prefixes: usize,
    operators: usize,
}

impl Scanner<'_> {
    /// Reads one token, or what stands between tokens.
    fn token(&mut self) -> Result<(), Excess> {
        let start = self.at;
        let byte = self.text[start];
        let next = self.text.get(start + 1).copied();
        self.at += 1;
        if byte.is_ascii_whitespace() {
            return Ok(());
        }
        if byte == b'/' && next == Some(b'/') {
            self.skip_while(|byte| byte != b'\n' && byte != b'\r');
            return Ok(());
        }
        self.first.get_or_insert(start);
        let prefixes = std::mem::take(&mut self.prefixes);
        match byte {
            b'"' => self.skip_string(),
            b'(' | b'{' => return self.open(start, prefixes),
            b'[' => {
                self.operator(start)?;
                return self.open(start, prefixes);
            }
            b')' | b']' | b'}' => self.close(),
            b',' => self.end_ifs(),
            b';' if self.depth == 0 => return self.end_statement(),
            b'!' | b'-' if next != Some(b'=') => {
                self.prefixes = prefixes + 1;
                if byte == b'-' {
                    self.operator(start)?;
                }
                return self.check_depth(start);
            }
            b'.' | b'+' | b'*' => return self.operator(start),
            b'!' | b'=' | b'<' | b'>' | b'|' | b'&' => {
                self.skip_while(|byte| matches!(byte, b'=' | b'|' | b'&'));
                return self.operator(start);
            }
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => return self.word(start),
            _ => {}
        }
        Ok(())
    }

    fn word(&mut self, start: usize) -> Result<(), Excess> {
        self.skip_while(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
        match &self.text[start..self.at] {
            b"if" => {
                self.depth += 1;
                if let Some(frame) = self.frames.last_mut() {
                    frame.ifs += 1;
                }
                self.check_depth(start)
            }
            // Conditions are joined into one chain, so each counts like an operator.
            b"in" | b"has" | b"like" | b"is" | b"when" | b"unless" => self.operator(start),
            _ => Ok(()),
        }
    }

    fn open(&mut self, start: usize, prefixes: usize) -> Result<(), Excess> {
        let weight = 1 + prefixes;
        self.frames.push(Frame { weight, ifs: 0 });
        self.depth += weight;
        self.check_depth(start)
    }

    fn close(&mut self) {
        self.end_ifs();
        if let Some(frame) = self.frames.pop() {
            self.depth -= frame.weight;
        }
    }

    fn end_ifs(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            self.depth -= std::mem::take(&mut frame.ifs);
        }
    }

    fn operator(&mut self, start: usize) -> Result<(), Excess> {
        self.operators += 1;
        if self.operators > MAX_OPERATORS {
            let sentence = format!("this policy has more than {MAX_OPERATORS} operators");
            return Err(Excess { offset: start, sentence });
        }
        Ok(())
    }

    fn check_depth(&self, start: usize) -> Result<(), Excess> {
        if self.depth + self.prefixes > MAX_NESTING {
            let sentence = format!("this is nested more than {MAX_NESTING} levels deep");
            return Err(Excess { offset: start, sentence });
        }
        Ok(())
    }

    fn end_statement(&mut self) -> Result<(), Excess> {
        if self.at - self.from > self.max_statement_bytes {
            let sentence = format!("this is longer than {} KiB", self.max_statement_bytes >> 10);
            return Err(Excess { offset: self.first.unwrap_or(self.from), sentence });
        }
        if let Some(first) = self.first.take() {
            self.statements.push(first..self.at);
        }
        self.from = self.at;
        self.operators = 0;
        self.prefixes = 0;
        Ok(())
    }

    /// To the end of a string literal; one that does not end is the parser's to refuse.
    fn skip_string(&mut self) {
        while let Some(&byte) = self.text.get(self.at) {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                return;
            }
        }
        self.at = self.text.len();
    }

    fn skip_while(&mut self, more: impl Fn(u8) -> bool) {
        while self.text.get(self.at).is_some_and(|&byte| more(byte)) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_policies(text: &str) -> Result<Vec<Range<usize>>, Excess> {
        scan(text, MAX_POLICY_BYTES)
    }

    fn condition(body: &str) -> String {
        format!("permit (principal, action, resource) when {{ {body} }};")
    }

    #[test]
    fn statements_start_at_their_first_token() {
        let text = "// permit ((((\n@id(\"a;\\\";\")\npermit (p, a, r);\n\n  forbid (p, a, r); // end";
        let statements = scan_policies(text).expect("within bounds");
        let starts: Vec<&str> = statements.iter().map(|range| &text[range.start..range.start + 3]).collect();
        assert_eq!(starts, ["@id", "for"]);
        assert_eq!(&text[statements[1].clone()], "forbid (p, a, r);");
    }

    #[test]
    fn brackets_in_strings_and_comments_do_not_count() {
        let brackets = "(".repeat(10_000);
        assert!(scan_policies(&condition(&format!("context.a == \"{brackets}\" // {brackets}\n"))).is_ok());
    }

    #[test]
    fn nesting_is_bounded_whatever_it_is_made_of() {
        let many = 10_000;
        for body in [
            "(".repeat(many),
            "[".repeat(many),
            "{".repeat(many),
            "!".repeat(many),
            "-".repeat(many),
            "!(".repeat(many),
            "! \n".repeat(many),
            "if a then b else ".repeat(many),
            "if ".repeat(many),
            "(if a then ".repeat(many),
        ] {
            assert!(scan_policies(&condition(&body)).is_err(), "{}", &body[..20]);
            assert!(scan_policies(&body).is_err(), "{}", &body[..20]);
        }
    }

    #[test]
    fn chains_are_bounded_whatever_they_are_made_of() {
        for link in ["|| a ", "&& a ", "+ 1 ", "- 1 ", "* 2 ", ".a", "[\"a\"]", "== a ", "in a ", "has a ", "< a "] {
            let body = format!("a {}", link.repeat(257));
            assert!(scan_policies(&condition(&body)).is_err(), "{link}");
            let body = format!("a {}", link.repeat(250));
            assert!(scan_policies(&condition(&body)).is_ok(), "{link}");
        }
        let conditions = format!("permit (p, a, r) {};", "when { true }".repeat(257));
        assert!(scan_policies(&conditions).is_err());
    }

    #[test]
    fn lists_and_negations_side_by_side_are_no_nesting() {
        let list = format!("[{}].contains(context.a)", "\"x\", ".repeat(1_000));
        assert!(scan_policies(&condition(&list)).is_ok());
        assert!(scan_policies(&condition(&"!(a) && ".repeat(100))).is_ok());
        assert!(scan_policies(&condition(&format!("[{}]", "if a then b else c, ".repeat(100)))).is_ok());
    }

    #[test]
    fn counts_start_anew_with_each_policy() {
        assert!(scan_policies(&condition(&"a && ".repeat(200)).repeat(50)).is_ok());
    }

    #[test]
    fn a_policy_has_a_length() {
        let text = condition(&format!("context.a == \"{}\"", "x".repeat(MAX_POLICY_BYTES)));
        assert!(scan_policies(&text).is_err());
    }

    #[test]
    fn any_text_is_scanned() {
        for text in ["", "\"", "\"\\", "}", ")))", ";;;", "é(", "//", "/", "!", "if"] {
            let _ = scan_policies(text);
        }
    }
}

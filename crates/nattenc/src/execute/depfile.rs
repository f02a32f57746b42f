//! Reads the Makefile rules that `gcc -MD` writes.

/// The prerequisites of the rules in `text`, in order: the headers that a compile read.
pub fn parse(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut name = String::new();
    let mut in_target = true;
    let mut chars = text.chars().peekable();
    let mut push = |name: &mut String, in_target: bool| {
        if !in_target && !name.is_empty() {
            names.push(name.clone());
        }
        name.clear();
    };
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.peek() {
                Some('\n') => {
                    chars.next();
                    push(&mut name, in_target);
                }
                Some(' ' | '#' | '\\') => name.extend(chars.next()),
                _ => name.push(c),
            },
            '$' if chars.peek() == Some(&'$') => name.extend(chars.next()),
            ':' if in_target && chars.peek().is_none_or(|n| n.is_whitespace() || *n == '\\') => {
                name.clear();
                in_target = false;
            }
            '\n' => {
                push(&mut name, in_target);
                in_target = true;
            }
            c if c.is_whitespace() => push(&mut name, in_target),
            c => name.push(c),
        }
    }
    push(&mut name, in_target);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prerequisites_are_read_as_make_reads_them() {
        for (text, names) in [
            (
                "unit.ii: unit.cu inc/a.h \\\n /usr/include/b.h\n",
                vec!["unit.cu", "inc/a.h", "/usr/include/b.h"],
            ),
            (
                "a.o: with\\ space.h back$$dollar.h hash\\#.h\n",
                vec!["with space.h", "back$dollar.h", "hash#.h"],
            ),
            ("a.o:\\\n x.h\n", vec!["x.h"]),
            ("a.o: x.h\nx.h:\ny.o: y.h", vec!["x.h", "y.h"]),
            ("", vec![]),
        ] {
            assert_eq!(parse(text), names, "{text:?}");
        }
    }
}

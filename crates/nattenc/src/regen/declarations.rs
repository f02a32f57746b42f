//! What C and C++ headers declare: functions, types and their members, aliases, enumerators, each as one
//! line of normal spelling. Enough of the language for NATTEN's headers and ours: bodies are skipped,
//! and so are preprocessor lines, of whose branches all count.

use super::entries::{arguments, body_length, bracket, join, tokens};
use std::collections::{BTreeMap, BTreeSet};

/// Qualified name → every declaration of that name. Overloads and specialisations share one.
pub(super) type Declarations = BTreeMap<String, BTreeSet<String>>;

/// What `text` declares.
pub(super) fn declarations(text: &str) -> Declarations {
    let text = without_directives(text);
    let mut found = Declarations::new();
    scan(&tokens(&text), "", &mut found);
    found
}

/// A declaration of several variables of one type as one declaration each: `const int *a, b[3]`.
pub(super) fn single(declaration: &str) -> Vec<String> {
    let all = tokens(declaration);
    let Ok(parts) = arguments(&all) else { return vec![declaration.to_owned()] };
    let first = tokens(&parts[0]);
    // The type ends before the first star, else before the name.
    let end = first.iter().position(|t| matches!(*t, "[" | "="));
    let name = end.unwrap_or(first.len()).saturating_sub(1);
    let base = first.iter().position(|t| *t == "*").unwrap_or(name);
    let spelled = |declarator: &[&str]| format!("{} {}", join(&first[..base]), join(declarator));
    let rest = parts[1..].iter().map(|part| spelled(&tokens(part)));
    std::iter::once(spelled(&first[base..])).chain(rest).collect()
}

fn without_directives(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut inside = false;
    for line in text.lines() {
        inside = inside || line.trim_start().starts_with('#');
        if !inside {
            kept.push_str(line);
        }
        kept.push('\n');
        inside = inside && line.trim_end().ends_with('\\');
    }
    kept
}

/// What an opening brace after these tokens begins.
enum Opens<'a> {
    Scope(Option<String>),
    Type(&'a str),
    Enum(Option<&'a str>),
    Function,
    Value,
}

fn scan(all: &[&str], scope: &str, found: &mut Declarations) {
    let inside = |name: &str| qualified(scope, name);
    let mut statement: Vec<&str> = Vec::new();
    let mut at = 0;
    while at < all.len() {
        let token = all[at];
        at += 1;
        match token {
            ";" => {
                declare(&statement, scope, found);
                statement.clear();
            }
            ":" if matches!(statement[..], ["public" | "private" | "protected"]) => statement.clear(),
            "}" => statement.clear(),
            "{" => {
                let length = body_length(&all[at - 1..]).unwrap_or(all.len() - at + 1);
                let body = &all[at..(at + length - 1).min(all.len()).max(at + 1) - 1];
                at = (at + length - 1).min(all.len());
                match opens(&statement) {
                    Opens::Scope(name) => {
                        scan(body, &name.map_or_else(|| scope.to_owned(), |name| inside(&name)), found);
                        statement.clear();
                    }
                    Opens::Type(name) => {
                        add(found, inside(name), join(&statement));
                        scan(body, &inside(name), found);
                        // `typedef struct x {...} y;` ends with a name of no interest.
                        statement = vec!["typedef"];
                    }
                    Opens::Enum(name) => {
                        let name = name.map_or_else(|| scope.to_owned(), inside);
                        enumerators(body, &name, found);
                        statement = vec!["typedef"];
                    }
                    Opens::Function => {
                        declare(&statement, scope, found);
                        statement.clear();
                    }
                    Opens::Value => {}
                }
            }
            _ => statement.push(token),
        }
    }
}

/// The tokens without template headers and without attributes that take parentheses.
fn plain<'a>(statement: &[&'a str]) -> Vec<&'a str> {
    let mut plain = Vec::new();
    let mut at = 0;
    while at < statement.len() {
        let rest = &statement[at..];
        at += match rest {
            ["template", "<", ..] => 1 + bracket(&rest[1..]).unwrap_or(rest.len() - 1),
            ["__attribute__" | "__launch_bounds__" | "alignas", "(", ..] => {
                1 + bracket(&rest[1..]).unwrap_or(rest.len() - 1)
            }
            [token, ..] => {
                plain.push(*token);
                1
            }
            [] => 1,
        };
    }
    plain
}

fn opens<'a>(statement: &[&'a str]) -> Opens<'a> {
    let plain = plain(statement);
    let words = plain.strip_prefix(&["typedef"]).unwrap_or(&plain);
    match words {
        ["namespace"] => Opens::Scope(None),
        ["namespace", name @ ..] => Opens::Scope(Some(name.concat())),
        ["extern", language] if language.starts_with('"') => Opens::Scope(None),
        ["enum", "class" | "struct", name, ..] => Opens::Enum(Some(*name)),
        ["enum", name, ..] if *name != ":" => Opens::Enum(Some(*name)),
        ["enum", ..] => Opens::Enum(None),
        ["struct" | "class" | "union", name, rest @ ..] if !rest.contains(&"(") && *name != ":" => {
            Opens::Type(name)
        }
        ["struct" | "class" | "union"] => Opens::Scope(None),
        _ if call(words).is_some() => Opens::Function,
        _ => Opens::Value,
    }
}

/// Where the parameters of a function begin: the first parenthesis that is in no template argument and
/// behind no `=`.
fn call(words: &[&str]) -> Option<usize> {
    if let Some(operator) = words.iter().position(|word| *word == "operator") {
        // The parentheses of `operator()` itself come before those of its parameters.
        let open = |from: usize| words.iter().skip(from).position(|word| *word == "(").map(|at| from + at);
        let first = open(operator)?;
        return if first == operator + 1 { open(first + 1) } else { Some(first) };
    }
    let mut depth = 0_usize;
    for (at, word) in words.iter().enumerate() {
        match *word {
            "<" => depth += 1,
            ">" => depth = depth.saturating_sub(1),
            "=" if depth == 0 => return None,
            "(" if depth == 0 && at > 0 && words[at - 1] != "decltype" => return Some(at),
            _ => {}
        }
    }
    None
}

fn declare(statement: &[&str], scope: &str, found: &mut Declarations) {
    let words = plain(statement);
    match words[..] {
        ["using", name, "=", ..] => add(found, qualified(scope, name), join(statement)),
        [] | ["typedef" | "friend" | "static_assert" | "using", ..] => {}
        ["struct" | "class" | "union" | "enum" | "namespace", _] => {}
        _ => match call(&words) {
            Some(parameters) => {
                if let Some(name) = function_name(&words[..parameters]) {
                    add(found, qualified(scope, &name), join(signature(statement)));
                }
            }
            None => {
                for text in single(&join(signature(statement))) {
                    if let Some(name) = variable_name(&tokens(&text)) {
                        add(found, qualified(scope, &name), text.clone());
                    }
                }
            }
        },
    }
}

fn qualified(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}::{name}") }
}

fn add(found: &mut Declarations, name: String, text: String) {
    found.entry(name).or_default().insert(text);
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

fn function_name(before: &[&str]) -> Option<String> {
    if let Some(at) = before.iter().position(|word| *word == "operator") {
        return Some(before[at..].concat());
    }
    let (last, rest) = before.split_last()?;
    is_name(last).then(|| format!("{}{last}", if rest.last() == Some(&"~") { "~" } else { "" }))
}

fn variable_name(words: &[&str]) -> Option<String> {
    let end = words.iter().position(|word| matches!(*word, "=" | "[")).unwrap_or(words.len());
    let name = words[..end].last().filter(|word| is_name(word))?;
    (end > 1).then(|| (*name).to_owned())
}

/// The tokens up to a member's initialiser: `= value`, or a constructor's `: a(b)`.
fn signature<'a, 'b>(statement: &'b [&'a str]) -> &'b [&'a str] {
    if statement.contains(&"operator") {
        return statement;
    }
    let mut depth = 0_usize;
    let mut closed = false;
    for (at, word) in statement.iter().enumerate() {
        match *word {
            "(" | "<" | "[" => depth += 1,
            ")" | ">" | "]" => {
                depth = depth.saturating_sub(1);
                closed |= *word == ")" && depth == 0;
            }
            "=" if depth == 0 => {
                // The value of a constant is part of what is declared.
                let constant = statement[..at].contains(&"constexpr");
                return if constant { statement } else { &statement[..at] };
            }
            ":" if closed
                && depth == 0
                && statement.get(at + 1) != Some(&":")
                && statement[at - 1] != ":" =>
            {
                return &statement[..at];
            }
            _ => {}
        }
    }
    statement
}

/// Enumerators with their values, those that follow from the one before too.
fn enumerators(body: &[&str], scope: &str, found: &mut Declarations) {
    let mut next = Some(0_i64);
    for text in arguments(body).unwrap_or_default() {
        let words = tokens(&text);
        let Some(name) = words.first().filter(|word| is_name(word)) else { continue };
        let value = match words.get(1) {
            Some(&"=") => join(&words[2..]),
            _ => next.map_or_else(|| "the next number".to_owned(), |number| number.to_string()),
        };
        next = value.parse::<i64>().ok().map(|number| number + 1);
        add(found, qualified(scope, name), format!("{name} = {value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let all = declarations(text);
        all.iter().flat_map(|(name, texts)| texts.iter().map(move |text| format!("{name}: {text}"))).collect()
    }

    #[test]
    fn types_members_and_functions_are_found_with_their_scope() {
        let text = "
            #include <x>
            #define M(a) struct a { \\
              int lost; };
            namespace n { namespace { // unnamed
            template <class T, int K = 2>
            struct Kernel : Base<T> {
              using Dim = typename D<T>::type;
              static constexpr int kAlign = 32; /* struct no { */
              struct Params { T* q_ptr = nullptr; int heads{0}; Dim a, b;
                bool advance() { if (heads) { return true; } return false; }
              };
              Kernel(int x) : x_(x), y{1} {}
              static void run(const Params& p, std::tuple<int, int> t);
             public:
              CUTLASS_DEVICE T operator()(int i) const { return {}; }
              friend class Other;
            };
            inline int f(int a, int b = 3) { return a; }
            }}";
        assert_eq!(
            shown(text),
            [
                "n::Kernel: template<class T, int K=2>struct Kernel:Base<T>",
                "n::Kernel::Dim: using Dim=typename D<T>::type",
                "n::Kernel::Kernel: Kernel(int x)",
                "n::Kernel::Params: struct Params",
                "n::Kernel::Params::a: Dim a",
                "n::Kernel::Params::advance: bool advance()",
                "n::Kernel::Params::b: Dim b",
                "n::Kernel::Params::heads: int heads",
                "n::Kernel::Params::q_ptr: T *q_ptr",
                "n::Kernel::kAlign: static constexpr int kAlign=32",
                "n::Kernel::operator(): CUTLASS_DEVICE T operator()(int i)const",
                "n::Kernel::run: static void run(const Params&p, std::tuple<int, int>t)",
                "n::f: inline int f(int a, int b=3)",
            ]
        );
    }

    #[test]
    fn the_c_abi_s_shapes_are_understood() {
        let text = "
            extern \"C\" {
            #define API __attribute__((visibility(\"default\")))
            enum { OK = 0, E_A, E_B = 7, E_C };
            typedef struct args { uint32_t size; const void *query, *key; int32_t shape[3], window[3]; } args;
            API int32_t op(const args *a);
            API const char *last_error(void);
            }";
        assert_eq!(
            shown(text),
            [
                "E_A: E_A = 1",
                "E_B: E_B = 7",
                "E_C: E_C = 8",
                "OK: OK = 0",
                "args: typedef struct args",
                "args::key: const void *key",
                "args::query: const void *query",
                "args::shape: int32_t shape[3]",
                "args::size: uint32_t size",
                "args::window: int32_t window[3]",
                "last_error: API const char*last_error(void)",
                "op: API int32_t op(const args*a)",
            ]
        );
        assert_eq!(
            single("const void*query, *key, v"),
            ["const void *query", "const void *key", "const void v"]
        );
        assert_eq!(single("int32_t shape[3], window[3]"), ["int32_t shape[3]", "int32_t window[3]"]);
        assert_eq!(single("uint32_t size"), ["uint32_t size"]);
    }

    #[test]
    fn unfinished_text_is_no_endless_loop() {
        for text in
            ["struct A {", "void f() {", "}", "{", ";;", "template <", "enum E { A,", "using", "a = {"]
        {
            let _ = declarations(text);
        }
    }
}

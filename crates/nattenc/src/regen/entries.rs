//! The entry points in the text of a unit: upstream's, and ours. Knows as much of C++ as those texts
//! use; what it does not understand is an error, never an entry less.

use anyhow::{Context, anyhow, bail};
use std::collections::BTreeMap;

/// One entry point, in words that do not depend on who wrote the unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its name.
    pub(super) name: String,
    /// The kernel classes that it instantiates, with their template arguments, aliases replaced.
    pub(super) classes: Vec<String>,
    /// The half-open range of `__CUDA_ARCH__` outside of which its body is empty, where it has one.
    pub(super) guard: Option<(u32, u32)>,
}

/// The entry points of a unit that upstream's scripts wrote.
pub(super) fn upstream(text: &str) -> anyhow::Result<Vec<Entry>> {
    let tokens = tokens(text);
    let mut entries = Vec::new();
    for function in functions(&tokens)? {
        let classes = match function.class {
            Some(class) => vec![class],
            None => host_classes(function.body),
        };
        if classes.is_empty() {
            bail!("function {} instantiates no kernel class", function.name);
        }
        entries.push(Entry { name: function.name.to_owned(), classes, guard: guard(function.body)? });
    }
    Ok(entries)
}

/// The entry points of a unit of ours.
pub(super) fn ours(text: &str) -> anyhow::Result<Vec<Entry>> {
    let tokens = tokens(text);
    let functions = functions(&tokens)?;
    let rows = rows(&tokens)?;
    let masked = mask_templates(&tokens);
    if functions.is_empty() {
        return rows
            .into_iter()
            .map(|row| {
                let classes = row_classes(row.kind, &row.arguments, &masked)
                    .with_context(|| format!("row {} of kind {}", row.name, row.kind))?;
                Ok(Entry { name: row.name.to_owned(), classes, guard: None })
            })
            .collect();
    }
    if rows.iter().map(|row| row.name).ne(functions.iter().map(|function| function.name)) {
        bail!("the table does not list the unit's functions");
    }
    let entry = |function: &Function<'_>| {
        let class = function.class.clone().ok_or_else(|| anyhow!("{} is no kernel", function.name))?;
        Ok(Entry { name: function.name.to_owned(), classes: vec![class], guard: guard(function.body)? })
    };
    functions.iter().map(entry).collect()
}

struct Function<'a> {
    name: &'a str,
    /// Of a `__global__` function: the class whose parameters it takes.
    class: Option<String>,
    body: &'a [&'a str],
}

struct Row<'a> {
    /// `blackwell_fna_forward` of `blackwell_fna_forward_entry`.
    kind: &'a str,
    arguments: Vec<String>,
    name: &'a str,
}

/// Identifiers and numbers, string literals, and single characters of everything else but comments.
pub(super) fn tokens(text: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if first.is_whitespace() {
            first.len_utf8()
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else {
            let length = if is_word(first) {
                rest.find(|c| !is_word(c)).unwrap_or(rest.len())
            } else if first == '"' {
                string_length(rest)
            } else {
                first.len_utf8()
            };
            tokens.push(&rest[..length]);
            length
        };
        rest = &rest[length..];
    }
    tokens
}

fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (index, character) in text.char_indices().skip(1) {
        match character {
            '"' if !escaped => return index + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Tokens as text: words apart, a blank after a comma.
pub(super) fn join(tokens: &[&str]) -> String {
    let ends_word = |text: &str| text.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let mut text = String::new();
    for token in tokens {
        if text.ends_with(',') || ends_word(&text) && ends_word(token) {
            text.push(' ');
        }
        text.push_str(token);
    }
    text
}

/// How many tokens the bracket that `tokens` start with reaches over, itself and its partner included.
pub(super) fn bracket(tokens: &[&str]) -> anyhow::Result<usize> {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate() {
        match *token {
            "(" | "{" | "<" | "[" => depth += 1,
            ")" | "}" | ">" | "]" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return Ok(index + 1);
        }
    }
    Err(anyhow!("a bracket is open: {}", join(&tokens[..tokens.len().min(8)])))
}

/// As [`bracket`], of braces and parentheses alone: a body has comparisons in it.
pub(super) fn body_length(tokens: &[&str]) -> anyhow::Result<usize> {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate() {
        match *token {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return Ok(index + 1);
        }
    }
    Err(anyhow!("a body is open"))
}

/// `void name(...) {...}`, and `__global__ void __launch_bounds__(...) name(typename Class::Params p) {...}`.
fn functions<'a>(tokens: &'a [&'a str]) -> anyhow::Result<Vec<Function<'a>>> {
    let mut functions = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        let (name_at, is_kernel) = match rest {
            ["__global__", "void", "__launch_bounds__", "(", ..] => (3 + bracket(&rest[3..])?, true),
            ["void", _, "(", ..] => (1, false),
            _ => {
                at += 1;
                continue;
            }
        };
        let name = *rest.get(name_at).context("a function has no name")?;
        let parameters = &rest[name_at + 1..];
        let parameters = &parameters[..bracket(parameters)?];
        let body = &rest[name_at + 1 + parameters.len()..];
        if body.first() != Some(&"{") {
            at += name_at + 1;
            continue;
        }
        let body = &body[..body_length(body)?];
        let class = match parameters {
            ["(", "typename", class @ .., ":", ":", "Params", _, ")"] => Some(join(class)),
            _ if is_kernel => bail!("kernel {name} does not take the parameters of a class"),
            _ => None,
        };
        functions.push(Function { name, class, body });
        at += name_at + 1 + parameters.len() + body.len();
    }
    Ok(functions)
}

/// What a host function instantiates: the aliases of wrapper classes; where there are none, the
/// function template that it calls.
fn host_classes(body: &[&str]) -> Vec<String> {
    let mut aliases: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut classes = Vec::new();
    for (at, window) in body.windows(3).enumerate() {
        let ["using", alias, "="] = window else { continue };
        let value = body[at + 3..].iter().take_while(|token| **token != ";");
        let value: Vec<&str> =
            value.flat_map(|token| aliases.get(token).cloned().unwrap_or_else(|| vec![*token])).collect();
        if value.iter().any(|token| token.starts_with("Kernel")) {
            classes.push(join(&value));
        }
        aliases.insert(alias, value);
    }
    if classes.is_empty() {
        let call = body.iter().position(|token| token.starts_with("fna_reference_"));
        if let (Some(call), Some(causal)) = (call, aliases.get("Causal")) {
            let element = body[call..].iter().skip_while(|token| **token != "<").skip(1);
            let element: Vec<&str> = element.take_while(|token| **token != "*").copied().collect();
            classes.push(format!("{}<{}, {}>", body[call], join(&element), join(causal)));
        }
    }
    classes
}

/// The numbers that a body compares `__CUDA_ARCH__` with.
fn guard(body: &[&str]) -> anyhow::Result<Option<(u32, u32)>> {
    let after = |operator: &[&str]| {
        body.windows(operator.len() + 2).find_map(|window| {
            let [name, rest @ .., number] = window else { return None };
            (*name == "__CUDA_ARCH__" && rest == operator).then(|| number.parse::<u32>().ok()).flatten()
        })
    };
    match (after(&[">", "="]), after(&["<"])) {
        (Some(low), Some(high)) => Ok(Some((low, high))),
        (None, None) => Ok(None),
        _ => Err(anyhow!("a guard has one bound")),
    }
}

/// `kind_entry<arguments>({"name", ...})` of a unit's table.
fn rows<'a>(tokens: &'a [&'a str]) -> anyhow::Result<Vec<Row<'a>>> {
    let mut rows = Vec::new();
    for (at, window) in tokens.windows(2).enumerate() {
        let [entry, "<"] = window else { continue };
        let Some(kind) = entry.strip_suffix("_entry") else { continue };
        let list = &tokens[at + 1..];
        let list = &list[..bracket(list)?];
        let ["(", "{", name, ..] = &tokens[at + 1 + list.len()..] else {
            bail!("an entry of kind {kind} has no row");
        };
        rows.push(Row {
            kind,
            arguments: arguments(&list[1..list.len() - 1])?,
            name: name.trim_matches('"'),
        });
    }
    Ok(rows)
}

/// Splits at the commas that are in no bracket.
pub(super) fn arguments(tokens: &[&str]) -> anyhow::Result<Vec<String>> {
    let mut arguments = vec![Vec::new()];
    let mut at = 0;
    while at < tokens.len() {
        let length = match tokens[at] {
            "," => {
                arguments.push(Vec::new());
                at += 1;
                continue;
            }
            "<" | "(" | "{" => bracket(&tokens[at..])?,
            _ => 1,
        };
        if let Some(argument) = arguments.last_mut() {
            argument.extend_from_slice(&tokens[at..at + length]);
        }
        at += length;
    }
    Ok(arguments.iter().map(|argument| join(argument)).collect())
}

/// How many template arguments a class has.
pub(super) fn template_arguments(class: &str) -> usize {
    let all = tokens(class);
    let open = all.iter().position(|token| *token == "<");
    let list = open.and_then(|open| Some(&all[open + 1..open + bracket(&all[open..]).ok()? - 1]));
    list.and_then(|list| arguments(list).ok()).map_or(0, |list| list.len())
}

/// `struct Name { template <class Mask, bool varlen> using With = Class; };`: name → class.
fn mask_templates<'a>(tokens: &'a [&'a str]) -> BTreeMap<&'a str, &'a [&'a str]> {
    const HEAD: [&str; 11] =
        ["{", "template", "<", "class", "Mask", ",", "bool", "varlen", ">", "using", "With"];
    let mut templates = BTreeMap::new();
    for (at, window) in tokens.windows(HEAD.len() + 3).enumerate() {
        let ["struct", name, head @ .., "="] = window else { continue };
        if *head == HEAD {
            let class = &tokens[at + window.len()..];
            let length = class.iter().take_while(|token| **token != ";").count();
            templates.insert(*name, &class[..length]);
        }
    }
    templates
}

/// The classes that the launcher behind a row instantiates.
fn row_classes(
    kind: &str,
    arguments: &[String],
    masked_classes: &BTreeMap<&str, &[&str]>,
) -> anyhow::Result<Vec<String>> {
    let all = arguments.join(", ");
    Ok(match kind {
        "hopper_fna_forward" | "hopper_fna_backward" => arguments.to_vec(),
        "hopper_fmha_forward" | "hopper_fmha_backward" => {
            let class =
                masked_classes.get(all.as_str()).with_context(|| format!("no class template {all}"))?;
            masked(["DefaultFusion", "ResidualFusion", "CausalFusion"], |mask, varlen| {
                let varlen = varlen.to_string();
                let fill = |token: &&str| match *token {
                    "Mask" => mask.to_owned(),
                    "varlen" => varlen.clone(),
                    other => other.to_owned(),
                };
                let filled: Vec<String> = class.iter().map(fill).collect();
                join(&filled.iter().map(String::as_str).collect::<Vec<_>>())
            })
        }
        "reference_forward" | "reference_backward" => {
            let (element, causal) = arguments.split_first().context("no element type")?;
            vec![format!("fna_{kind}<{element}, cute::tuple<{}>>", causal.join(", "))]
        }
        "blackwell_fna_forward" => vec![format!("natten::cuda::fna_blackwell::KernelForward<{all}>")],
        "blackwell_fna_backward" => vec![format!("natten::cuda::fna_blackwell::KernelBackward<{all}>")],
        "blackwell_fmha_forward" => masked(["NoMask", "ResidualMask", "CausalMask<true>"], |mask, varlen| {
            format!("natten::cuda::fmha_blackwell::KernelForward<{all}, {mask}, {varlen}>")
        }),
        "blackwell_fmha_backward" => {
            masked(["NoMask", "ResidualMaskForBackward", "CausalForBackwardMask<true>"], |mask, varlen| {
                format!(
                    "natten::cuda::fmha_blackwell::KernelBackward<{all}, {mask}, {varlen}, IsDeterministic>"
                )
            })
        }
        _ => bail!("it is not known what such a row instantiates"),
    })
}

/// The five kernels of an entry for dense attention, in upstream's order.
fn masked(masks: [&str; 3], class: impl Fn(&str, bool) -> String) -> Vec<String> {
    let [none, residual, causal] = masks.map(|mask| format!("cutlass::fmha::collective::{mask}"));
    let instances =
        [(&none, false), (&residual, false), (&causal, false), (&residual, true), (&causal, true)];
    instances.into_iter().map(|(mask, varlen)| class(mask, varlen)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, classes: &[&str], guard: Option<(u32, u32)>) -> Entry {
        Entry { name: name.into(), classes: classes.iter().map(ToString::to_string).collect(), guard }
    }

    #[test]
    fn kernels_give_class_and_guard() {
        let text = "
            __global__ void __launch_bounds__(
                K<1, M<false>, float>::kNumThreads,
                K<1, M<false>, float>::kMin)
            k1(typename K<1, M<false>, float>::Params p) {
            #ifdef __CUDA_ARCH__
            #if __CUDA_ARCH__ >= 500 // from
            #if __CUDA_ARCH__ < 700
              if (!p.go()) { return; }
              K<1, M<false>, float>::attention_kernel(p);
            #endif
              printf(\"FATAL: `k1` {\\\" from SM%d\\n\", int(__CUDA_ARCH__ + 0) / 10);
            #endif
            }";
        let want = [entry("k1", &["K<1, M<false>, float>"], Some((500, 700)))];
        assert_eq!(upstream(text).unwrap(), want);
        let table = "entries[] = {\n nattenc::fna_forward_entry<K<1, M<false>, float>, k1>(\n{\"k1\", 7})};";
        let ours_text = text.replace("from SM%d", "") + table;
        assert_eq!(ours(&ours_text).unwrap(), want);
        let error = ours(&ours_text.replace("{\"k1\"", "{\"k2\"")).unwrap_err();
        assert!(error.to_string().contains("does not list"), "{error}");
    }

    #[test]
    fn aliases_are_replaced_in_what_a_host_function_instantiates() {
        let text = "
            void declared(int x, at::T o);
            void f(void* p, /* one */ int n) {
              using Causal = cute::tuple<cute::true_type>;
              using G = cute::tuple<cute::Int<64>,cute::Int<8>>;
              using Kernel = a::KernelForward<
                half, Causal, G, /* kIsVarlen= */ false>;
              using Other = a::KernelForward<half, Causal, G, true>;
              Kernel kernel;
              if (n < 3) { g(kernel); }
            }
            void reference_r(void* p) {
              using Causal = cute::tuple<cute::false_type>;
              fna_reference_forward(static_cast<cutlass::half_t*>(p), Causal{});
            }";
        let tuple = "cute::tuple<cute::true_type>, cute::tuple<cute::Int<64>, cute::Int<8>>";
        assert_eq!(
            upstream(text).unwrap(),
            [
                entry(
                    "f",
                    &[
                        &format!("a::KernelForward<half, {tuple}, false>"),
                        &format!("a::KernelForward<half, {tuple}, true>")
                    ],
                    None
                ),
                entry(
                    "reference_r",
                    &["fna_reference_forward<cutlass::half_t, cute::tuple<cute::false_type>>"],
                    None
                ),
            ]
        );
    }

    #[test]
    fn rows_say_what_their_launchers_instantiate() {
        let text = "
            reference_forward_entry<cutlass::half_t, cute::false_type>({\"r\", 1}),
            blackwell_fna_forward_entry<float, cute::tuple<A, B>, cute::tuple<C>, true>({\"b\", 2})";
        assert_eq!(
            ours(text).unwrap(),
            [
                entry("r", &["fna_reference_forward<cutlass::half_t, cute::tuple<cute::false_type>>"], None),
                entry(
                    "b",
                    &[
                        "natten::cuda::fna_blackwell::KernelForward<float, cute::tuple<A, B>, cute::tuple<C>, true>"
                    ],
                    None
                ),
            ]
        );
        let hopper = ours(
            "namespace { struct Kernels0 {
               template <class Mask, bool varlen>
               using With = a::KernelForward<T, G, Mask, varlen>;
             }; }
             hopper_fmha_forward_entry<Kernels0>({\"h\", 1}), hopper_fna_forward_entry<a::K<T>>({\"n\"})",
        )
        .unwrap();
        assert_eq!(
            hopper[0].classes[3],
            "a::KernelForward<T, G, cutlass::fmha::collective::ResidualFusion, true>"
        );
        assert_eq!(hopper[1], entry("n", &["a::K<T>"], None));
        let fmha = ours("blackwell_fmha_forward_entry<T, G, false>({\"m\"})").unwrap();
        assert_eq!(fmha[0].classes.len(), 5);
        assert_eq!(
            fmha[0].classes[4],
            "natten::cuda::fmha_blackwell::KernelForward<T, G, false, cutlass::fmha::collective::CausalMask<true>, true>"
        );
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for (text, reason) in [
            ("void f(int x) { g(x); }", "instantiates no kernel class"),
            ("void f(int x) { using Kernel = KernelForward<T>;", "a body is open"),
            ("__global__ void __launch_bounds__(1) k(int x) {}", "does not take the parameters of a class"),
            (
                "__global__ void __launch_bounds__(1) k(typename K::Params p) {\n#if __CUDA_ARCH__ < 700\n}",
                "one bound",
            ),
        ] {
            let error = format!("{:#}", upstream(text).unwrap_err());
            assert!(error.contains(reason), "{text}: {error}");
        }
        for (text, reason) in [
            ("x_entry<T>({\"n\"})", "not known what such a row"),
            ("x_entry<T>(n)", "has no row"),
            ("hopper_fmha_forward_entry<K>({\"n\"})", "no class template K"),
        ] {
            let error = format!("{:#}", ours(text).unwrap_err());
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}

//! `include/natten_kernels.h` against `src/sys.rs`: the same structs, fields, offsets, sizes, constants
//! and functions. The header is read as text for its names and compiled as C for its numbers, so it
//! needs a C compiler (`$CC`, else `cc`) and no artifact.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(
    clippy::disallowed_methods,
    reason = "the project's doors to files and processes are in another crate"
)]

use natten_kernels::sys;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Field name to (offset, size), under the struct's name; "" is the struct itself.
type Layouts = BTreeMap<String, BTreeMap<String, (usize, usize)>>;

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// The header without comments and preprocessor lines.
fn header() -> String {
    let text: String = ["natten_kernels.h", "natten_kernels_merge.h"]
        .map(|name| std::fs::read_to_string(include().join(name)).unwrap())
        .concat();
    let mut bare = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("/*") {
        bare.push_str(before);
        rest = after.split_once("*/").expect("an unclosed comment").1;
    }
    bare.push_str(rest);
    bare.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

/// `(struct, fields)` in the order of the header.
fn header_structs(text: &str) -> Vec<(String, Vec<String>)> {
    text.split("typedef struct ")
        .skip(1)
        .map(|part| {
            let (name, body) = part.split_once('{').unwrap();
            let (body, _) = body.split_once('}').unwrap();
            let fields =
                body.split(';').map(str::trim).filter(|line| !line.is_empty()).flat_map(declared).collect();
            (name.trim().to_owned(), fields)
        })
        .collect()
}

/// The names in one declaration: `const void *a, *b`, `int32_t c[3], d`, `void *(*f)(void *ctx, ..)`.
fn declared(declaration: &str) -> Vec<String> {
    if let Some((_, after)) = declaration.split_once("(*") {
        return vec![after.split_once(')').unwrap().0.to_owned()];
    }
    declaration
        .split(',')
        .map(|one| {
            let one = one.split('[').next().unwrap();
            one.rsplit([' ', '*']).find(|word| !word.is_empty()).unwrap().to_owned()
        })
        .collect()
}

/// `(function, args struct)` for every operation: what takes one pointer to a const args struct.
fn header_operations(text: &str) -> Vec<(String, String)> {
    functions(text)
        .into_iter()
        .filter_map(|(name, parameters)| {
            let args = parameters.strip_prefix("const ")?.strip_suffix(" *args")?;
            Some((name, args.to_owned()))
        })
        .collect()
}

/// `(function, parameters)` of everything that the header exports.
fn functions(text: &str) -> Vec<(String, String)> {
    text.split("NATTEN_API ")
        .skip(1)
        .map(|part| {
            let (head, rest) = part.split_once('(').unwrap();
            let name = head.rsplit([' ', '*']).next().unwrap().to_owned();
            (name, rest.split_once(')').unwrap().0.to_owned())
        })
        .collect()
}

/// `(name, value as text)` of every enumerator.
fn header_constants(text: &str) -> Vec<(String, i32)> {
    text.split("enum {")
        .skip(1)
        .flat_map(|part| part.split_once('}').unwrap().0.split(',').map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|one| {
            let (name, value) = one.split_once('=')?;
            Some((name.trim().to_owned(), value.trim().parse().unwrap()))
        })
        .collect()
}

/// Compiles a program that prints `struct field offset size` for everything in `structs`, and runs it.
fn compiled_layouts(structs: &[(String, Vec<String>)]) -> (Layouts, u32) {
    let mut program =
        String::from("#include <natten_kernels_merge.h>\n#include <stdio.h>\nint main(void) {\n");
    program.push_str("  printf(\"version %u\\n\", (unsigned)NATTEN_KERNELS_ABI_VERSION);\n");
    for (name, fields) in structs {
        writeln!(program, "  printf(\"{name} . 0 %zu\\n\", sizeof({name}));").unwrap();
        for field in fields {
            writeln!(
                program,
                "  printf(\"{name} {field} %zu %zu\\n\", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));"
            )
            .unwrap();
        }
    }
    program.push_str("  return 0;\n}\n");
    let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("abi-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    std::fs::write(scratch.join("probe.c"), program).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let compiled = Command::new(&compiler)
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(include())
        .arg("-o")
        .arg(scratch.join("probe"))
        .arg(scratch.join("probe.c"))
        .output()
        .unwrap_or_else(|error| panic!("{compiler} does not start ({error}): this test needs a C compiler"));
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(scratch.join("probe")).output().unwrap();
    std::fs::remove_dir_all(&scratch).unwrap();
    let (mut layouts, mut version) = (Layouts::new(), 0);
    for line in String::from_utf8(printed.stdout).unwrap().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["version", number] => version = number.parse().unwrap(),
            [name, field, offset, size] => {
                let field = if field == "." { "" } else { field };
                let numbers = (offset.parse().unwrap(), size.parse().unwrap());
                layouts.entry(name.to_owned()).or_default().insert(field.to_owned(), numbers);
            }
            _ => panic!("unexpected line `{line}`"),
        }
    }
    (layouts, version)
}

fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// The layout of one struct of `sys`. The pattern names every field, so a new one cannot be forgotten here.
macro_rules! layout {
    ($into:ident, $name:ident { $($field:ident),+ $(,)? }) => {{
        let _exhaustive = |value: sys::$name| {
            let sys::$name { $($field: _),+ } = value;
        };
        let fields = $into.entry(stringify!($name).to_owned()).or_default();
        fields.insert(String::new(), (0, size_of::<sys::$name>()));
        $(fields.insert(
            stringify!($field).trim_start_matches("r#").to_owned(),
            (offset_of!(sys::$name, $field), size_of_field(|value: &sys::$name| &value.$field)),
        );)+
    }};
}

fn rust_layouts() -> Layouts {
    let mut all = Layouts::new();
    layout!(
        all,
        natten_kernel_info {
            size,
            family,
            name,
            backward,
            rank,
            dtype,
            causal,
            query_tile,
            key_tile,
            max_head_dim,
            alignment,
            shared_memory,
            sm_min,
            sm_max,
            schedule
        }
    );
    layout!(all, natten_allocator { ctx, alloc, free });
    layout!(
        all,
        natten_fna_forward_args {
            size,
            dtype,
            query,
            key,
            value,
            out,
            logsumexp,
            batch,
            heads,
            dim,
            dim_value,
            qkv_shape,
            window,
            stride,
            dilation,
            causal,
            query_tile,
            key_tile,
            scale,
            stream,
            allocator
        }
    );
    layout!(
        all,
        natten_fna_backward_args {
            size,
            dtype,
            query,
            key,
            value,
            out,
            grad_out,
            logsumexp,
            delta,
            grad_query,
            grad_key,
            grad_value,
            batch,
            heads,
            dim,
            dim_value,
            qkv_shape,
            window,
            stride,
            dilation,
            causal,
            query_tile,
            key_tile,
            key_splits,
            scale,
            stream,
            allocator
        }
    );
    layout!(
        all,
        natten_reference_forward_args {
            size,
            dtype,
            query,
            key,
            value,
            out,
            logsumexp,
            batch,
            heads,
            heads_kv,
            dim,
            dim_value,
            num_extra_kv,
            qkv_shape,
            window,
            stride,
            dilation,
            causal,
            scale,
            stream
        }
    );
    layout!(
        all,
        natten_reference_backward_args {
            size,
            dtype,
            query,
            key,
            value,
            out,
            grad_out,
            logsumexp,
            grad_query,
            grad_key,
            grad_value,
            batch,
            heads,
            heads_kv,
            dim,
            dim_value,
            num_extra_kv,
            qkv_shape,
            window,
            stride,
            dilation,
            causal,
            scale,
            stream
        }
    );
    layout!(
        all,
        natten_token_permute_args {
            size,
            dtype,
            r#in,
            out,
            batch,
            seqlen,
            heads,
            dim,
            token_layout,
            tile,
            dilation,
            flip_tiled_dims,
            stream
        }
    );
    layout!(
        all,
        natten_compute_delta_args { size, dtype, out, grad_out, delta, batch, seqlen, heads, dim, stream }
    );
    layout!(all, natten_attention_part { out, logsumexp });
    layout!(
        all,
        natten_merge_attentions_args {
            size,
            dtype,
            parts,
            out,
            logsumexp,
            part_count,
            batch,
            seqlen,
            heads,
            dim,
            stream
        }
    );
    layout!(
        all,
        natten_add_gradients_args { size, dtype, addends, sum, batch, seqlen, heads, count, dim, stream }
    );
    layout!(
        all,
        natten_tiled_fna_forward_args {
            size,
            dtype,
            query,
            key,
            value,
            out,
            logsumexp,
            batch,
            seqlen_q,
            seqlen_kv,
            heads,
            heads_kv,
            dim,
            num_extra_kv,
            q_shape,
            kv_shape,
            qkv_shape,
            window,
            stride,
            dilation,
            causal,
            query_tile,
            key_tile,
            kernel_type,
            persistent,
            scale,
            scale_q,
            scale_k,
            scale_v,
            inv_scale_o,
            stream,
            allocator
        }
    );
    layout!(
        all,
        natten_tiled_fna_backward_args {
            size,
            dtype,
            query,
            key,
            value,
            out,
            grad_out,
            logsumexp,
            delta,
            grad_query,
            grad_key,
            grad_value,
            batch,
            seqlen_q,
            seqlen_kv,
            heads,
            heads_kv,
            dim,
            num_extra_kv,
            q_shape,
            kv_shape,
            qkv_shape,
            window,
            stride,
            dilation,
            causal,
            query_tile,
            key_tile,
            scale,
            stream,
            allocator
        }
    );
    layout!(
        all,
        natten_fmha_forward_args {
            size,
            dtype,
            query,
            key,
            value,
            out,
            logsumexp,
            batch,
            seqlen_q,
            seqlen_kv,
            heads,
            heads_kv,
            dim,
            dim_value,
            causal,
            query_tile,
            key_tile,
            kernel_type,
            persistent,
            scale,
            scale_q,
            scale_k,
            scale_v,
            inv_scale_o,
            cumulative_seqlen_q,
            cumulative_seqlen_kv,
            max_seqlen_q,
            max_seqlen_kv,
            stream,
            allocator
        }
    );
    layout!(
        all,
        natten_fmha_backward_args {
            size,
            dtype,
            query,
            key,
            value,
            out,
            grad_out,
            logsumexp,
            delta,
            grad_query,
            grad_key,
            grad_value,
            batch,
            seqlen_q,
            seqlen_kv,
            heads,
            heads_kv,
            dim,
            dim_value,
            causal,
            query_tile,
            key_tile,
            key_splits,
            scale,
            cumulative_seqlen_q,
            cumulative_seqlen_kv,
            max_seqlen_q,
            max_seqlen_kv,
            stream,
            allocator,
            deterministic
        }
    );
    all
}

#[test]
fn structs_have_the_same_fields_offsets_and_sizes() {
    let structs = header_structs(&header());
    assert_eq!(structs.len(), 15, "the parser lost a struct: {structs:?}");
    let (in_c, version) = compiled_layouts(&structs);
    assert_eq!(version, sys::NATTEN_KERNELS_ABI_VERSION);
    let in_rust = rust_layouts();
    assert_eq!(in_c.keys().collect::<Vec<_>>(), in_rust.keys().collect::<Vec<_>>());
    let mut compared = 0;
    for (name, fields) in &in_c {
        assert_eq!(fields, &in_rust[name], "{name}");
        compared += fields.len() - 1;
    }
    println!("{} structs, {compared} fields", in_c.len());
    assert!(compared > 200, "only {compared} fields were compared");
}

/// Same size and offset do not tell a float from an integer: the header's order of names must be the
/// order of `sys`, which offsets prove, and every scalar kind must agree.
#[test]
fn fields_have_the_same_kind() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sys.rs")).unwrap();
    let in_rust: BTreeMap<(String, String), String> = text
        .split("pub struct ")
        .skip(1)
        .flat_map(|part| {
            let (name, body) = part.split_once(" {").unwrap();
            let (body, _) = body.split_once("\n}").unwrap();
            body.split("pub ")
                .skip(1)
                .map(|field| {
                    let (field, kind) = field.split_once(": ").unwrap();
                    let field = field.trim_start_matches("r#").to_owned();
                    let kind = kind.split_whitespace().collect::<Vec<_>>().join(" ");
                    ((name.to_owned(), field), kind.trim_end_matches(',').to_owned())
                })
                .collect::<Vec<_>>()
        })
        .collect();
    let mut compared = 0;
    for part in header().split("typedef struct ").skip(1) {
        let (name, body) = part.split_once('{').unwrap();
        for declaration in
            body.split_once('}').unwrap().0.split(';').map(str::trim).filter(|line| !line.is_empty())
        {
            for field in declared(declaration) {
                let kind = &in_rust[&(name.trim().to_owned(), field.clone())];
                assert_eq!(expected_kind(declaration, &field), *kind, "{name}.{field}");
                compared += 1;
            }
        }
    }
    assert!(compared > 200, "only {compared} fields were compared");
}

/// The header's `void *(*alloc)(void *ctx, size_t bytes, int32_t zero, void *stream)`.
const _: fn(sys::AllocFn) -> unsafe extern "C" fn(*mut c_void, usize, i32, *mut c_void) -> *mut c_void =
    |alloc| alloc;
/// The header's `void (*free)(void *ctx, void *ptr, void *stream)`.
const _: fn(sys::FreeFn) -> unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) = |free| free;

/// The Rust type of `field` in a C declaration.
fn expected_kind(declaration: &str, field: &str) -> String {
    match field {
        "alloc" => return "Option<AllocFn>".to_owned(),
        "free" => return "Option<FreeFn>".to_owned(),
        _ => {}
    }
    let constant = declaration.starts_with("const ");
    let words = declaration.trim_start_matches("const ");
    let base = match words.split([' ', '*']).next().unwrap() {
        "uint32_t" => "u32",
        "int32_t" => "i32",
        "float" => "f32",
        "void" => "c_void",
        "char" => "c_char",
        other => other,
    };
    let declarator = words.split(',').find(|one| declared(one) == [field]).unwrap();
    if declarator.contains('*') {
        format!("*{} {base}", if constant { "const" } else { "mut" })
    } else if declarator.contains("[3]") {
        format!("[{base}; 3]")
    } else {
        base.to_owned()
    }
}

#[test]
fn operations_are_the_37_and_the_2_of_merge_with_the_same_args() {
    let mut in_header = header_operations(&header());
    let mut in_rust: Vec<(String, String)> =
        sys::OPERATIONS.iter().map(|(name, args)| ((*name).to_owned(), (*args).to_owned())).collect();
    in_header.sort();
    in_rust.sort();
    assert_eq!(in_header, in_rust);
    assert_eq!(in_rust.len(), 37 + 2);
    let mut others: Vec<String> = functions(&header()).into_iter().map(|(name, _)| name).collect();
    others.retain(|name| !sys::OPERATIONS.iter().any(|(operation, _)| operation == name));
    let information = [
        "natten_last_error",
        "natten_abi_version",
        "natten_build_info",
        "natten_kernel_count",
        "natten_kernel_info_at",
    ];
    assert_eq!(others, information);
}

#[test]
fn constants_have_the_same_values() {
    let in_rust = [
        ("NATTEN_OK", sys::NATTEN_OK),
        ("NATTEN_E_INVALID_ARGUMENT", sys::NATTEN_E_INVALID_ARGUMENT),
        ("NATTEN_E_UNSUPPORTED", sys::NATTEN_E_UNSUPPORTED),
        ("NATTEN_E_BACKEND_NOT_BUILT", sys::NATTEN_E_BACKEND_NOT_BUILT),
        ("NATTEN_E_DEVICE", sys::NATTEN_E_DEVICE),
        ("NATTEN_E_OUT_OF_MEMORY", sys::NATTEN_E_OUT_OF_MEMORY),
        ("NATTEN_E_CUDA", sys::NATTEN_E_CUDA),
        ("NATTEN_E_CUTLASS", sys::NATTEN_E_CUTLASS),
        ("NATTEN_E_INTERNAL", sys::NATTEN_E_INTERNAL),
        ("NATTEN_FLOAT32", sys::NATTEN_FLOAT32),
        ("NATTEN_FLOAT16", sys::NATTEN_FLOAT16),
        ("NATTEN_BFLOAT16", sys::NATTEN_BFLOAT16),
        ("NATTEN_FLOAT8_E4M3", sys::NATTEN_FLOAT8_E4M3),
        ("NATTEN_FLOAT8_E5M2", sys::NATTEN_FLOAT8_E5M2),
    ];
    let in_header = header_constants(&header());
    assert_eq!(in_header, in_rust.map(|(name, value)| (name.to_owned(), value)));
}

fn main() {
    println!("cargo::rustc-check-cfg=cfg(natten_kernels_unlinked)");
    println!("cargo::rustc-cfg=natten_kernels_unlinked");
}

//! Tells the crate the target that it is compiled for, which only a build script knows.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!(
        "cargo::rustc-env=TARGET={}",
        std::env::var("TARGET").unwrap_or_default()
    );
}

//! Writes libtorch's folder into the run path of what is linked here, so that programs start without LD_LIBRARY_PATH.

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    if let Ok(torch) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{torch}/lib");
    }
}

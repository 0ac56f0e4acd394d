//! The program `pagelith`; its code is in the library `pagelith_cli`.

fn main() -> std::process::ExitCode {
    pagelith_cli::main()
}

//! The program `pagelith`; see the library beside it.

fn main() -> std::process::ExitCode {
    pagelith_cli::main()
}

//! The program `pagelith-sim`: long runs of seeds, and one seed again.

fn main() -> std::process::ExitCode {
    pagelith_sim::program::main()
}

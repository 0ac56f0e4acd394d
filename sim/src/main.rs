//! The program `pagelith-sim`: long campaigns over seeds, and the replay of one seed.

fn main() -> std::process::ExitCode {
    pagelith_sim::program::main()
}

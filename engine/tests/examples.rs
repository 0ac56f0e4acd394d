//! Runs each example.

macro_rules! examples {
    ($($name:ident: $file:literal,)+) => {
        $(
            #[path = $file]
            mod $name;

            #[test]
            fn $name() {
                $name::main().expect("the example runs");
            }
        )+

        #[test]
        fn every_example_is_run() {
            let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
            let mut found: Vec<String> = std::fs::read_dir(dir)
                .expect("the folder")
                .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
                .collect();
            found.sort();
            let mut run = [$(concat!(stringify!($name), ".rs")),+];
            run.sort();
            assert_eq!(found, run);
        }
    };
}

examples! {
    attached_client: "../examples/attached_client.rs",
    event_loops: "../examples/event_loops.rs",
    events_router: "../examples/events_router.rs",
    host_pool: "../examples/host_pool.rs",
    hybrid_model: "../examples/hybrid_model.rs",
    peers: "../examples/peers.rs",
    quick_start: "../examples/quick_start.rs",
}

//! Settings with a fixed set of names.

use serde::ser::{Serialize, Serializer};

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// The names, as written in a file.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The choice with that name; exact spelling.
            pub fn of_name(name: &str) -> Option<$name> {
                match name {
                    $($text => Some($name::$variant),)+
                    _ => None,
                }
            }

            /// The name, as written in a file.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

choice! {
    /// Eviction order of the DRAM tier.
    DramPolicy {
        /// The least recently used.
        Lru = "lru",
        /// The oldest.
        Fifo = "fifo",
        /// S3-FIFO (Yang et al., SOSP 2023): a small queue filters objects that are used once.
        #[default]
        S3Fifo = "s3fifo",
    }
}

choice! {
    /// What happens to a put that exceeds a limit of its namespace.
    WhenFull {
        /// Its outcome is `Refused`.
        #[default]
        Refuse = "refuse",
        /// The namespace's own oldest objects leave first.
        EvictOwn = "evict-own",
    }
}

choice! {
    /// Whether hits from SSD and from peers are kept in DRAM.
    Promote {
        /// Every such hit is kept.
        #[default]
        Always = "always",
        /// None is kept.
        Never = "never",
    }
}

choice! {
    /// The driver that locks the store's memory.
    DramPin {
        /// None.
        #[default]
        Off = "off",
        /// NVIDIA's CUDA driver.
        Cuda = "cuda",
        /// Ascend's runtime.
        Ascend = "ascend",
    }
}

choice! {
    /// Which segment of the SSD log is reclaimed first.
    SsdPolicy {
        /// The oldest.
        Fifo = "fifo",
        /// The one whose records are least valuable; recently used records are reinserted.
        #[default]
        Recency = "recency",
    }
}

choice! {
    /// Which of the pages that are put are written to SSD.
    SsdAdmissionRule {
        /// All of them.
        Through = "through",
        /// Those of a kind that is requested again, as far as the store has learned it.
        #[default]
        Worth = "worth",
        /// Those that were put or got before.
        SecondTouch = "second-touch",
    }
}

choice! {
    /// The I/O backend of the SSD tier.
    SsdIo {
        /// io_uring where the kernel and container allow it, else blocking.
        #[default]
        Auto = "auto",
        /// io_uring, or refuse to open.
        Uring = "uring",
        /// Positioned reads and writes on threads.
        Blocking = "blocking",
    }
}

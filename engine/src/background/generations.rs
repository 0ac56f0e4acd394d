//! Generations of namespaces on their way into the manifest.

use std::collections::HashMap;

use pagelith_io::fault::IoFault;
use pagelith_layouts::ids::{Generation, NamespaceId};
use pagelith_tiers::ssd::log::Log;

use crate::state::core::Core;
use crate::state::jobs::JobResult;

/// The generations in the manifest, and those being written to it.
pub(crate) struct Generations {
    /// In the durable manifest; namespaces that were never cleared are absent.
    durable: HashMap<NamespaceId, Generation>,
    /// Being made durable, with the job that waits for each.
    pending: Vec<(NamespaceId, Generation, u64)>,
}

impl Generations {
    pub fn new(durable: HashMap<NamespaceId, Generation>) -> Generations {
        Generations { durable, pending: Vec::new() }
    }

    /// The generation of a namespace in the durable manifest.
    pub fn durable(&self, namespace: NamespaceId) -> Generation {
        self.durable.get(&namespace).copied().unwrap_or(Generation::FIRST)
    }

    /// Make a generation durable, for `job`.
    pub fn raise(
        &mut self,
        log: &mut Log,
        namespace: NamespaceId,
        generation: Generation,
        job: u64,
    ) {
        self.pending.push((namespace, generation, job));
        log.raise_generation(namespace, generation);
    }

    /// The generations that the durable manifest does not have.
    pub fn missing(&self, core: &Core) -> Vec<(NamespaceId, Generation)> {
        let generations = core.visibility.generations().iter();
        generations
            .filter(|(ns, generation)| self.durable.get(ns) != Some(generation))
            .map(|(ns, generation)| (*ns, *generation))
            .collect()
    }

    /// The manifest has this generation, or may not have it because of a fault.
    pub fn ended(
        &mut self,
        core: &mut Core,
        namespace: NamespaceId,
        generation: Generation,
        result: Result<(), IoFault>,
    ) {
        let result = match result {
            Ok(()) => {
                self.durable.insert(namespace, generation);
                JobResult::Done
            }
            // `LogEvent::ManifestFailed` reports the manifest's failure.
            Err(fault) => JobResult::Failed(fault.into()),
        };
        let this = |ns, gen_| (ns, gen_) == (namespace, generation);
        for (.., job) in self.pending.extract_if(.., |(ns, gen_, _)| this(*ns, *gen_)) {
            core.jobs.complete(job, result.clone());
        }
    }
}

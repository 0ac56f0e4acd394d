//! Names of policies: `DRAM+SSD reclaim+admission`, such as `s3fifo+recency+worth`.

use std::fmt;

use anyhow::{Context, bail};
use pagelith_tiers::policy::admission::{ADMISSION_RULES, AdmissionRule, AdmissionSettings};
use pagelith_tiers::policy::{FRAME_POLICIES, REINSERT_RATIO_MAX, SegmentPolicy, segment_policy};

/// The name of the defaults of the store.
const DEFAULT: &str = "default";
/// The name of the bound that knows the future.
const CLAIRVOYANT: &str = "clairvoyant";
/// Names of the settings `ssd.policy`, and those of the policies.
const RECLAIMS: [(&str, &str); 2] = [("fifo", "fifo"), ("recency", "lowest-mean-recency")];

/// What happens to states that a longer prefix has superseded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum StatesRule {
    /// A lookup makes all states of its path recent.
    Refresh,
    /// A lookup makes only the state recent from which the prompt goes on.
    Keep,
    /// As `keep`, and superseded states leave first, as in the store.
    #[default]
    Supersede,
}

/// Policies of both tiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PolicyChoice {
    /// Policies of the store, by the names of their settings.
    Store { name: String, dram: &'static str, reclaim: &'static str, admission: &'static str },
    /// A bound: it knows when each block is requested next.
    Clairvoyant,
}

impl PolicyChoice {
    /// The choices that a list names; `all` stands for every combination and the bound.
    ///
    /// # Errors
    /// A name is unknown; the error lists the known ones.
    pub(super) fn parse_list(names: &[String]) -> anyhow::Result<Vec<PolicyChoice>> {
        let mut choices = Vec::new();
        for name in names {
            let found = match name.as_str() {
                "all" => PolicyChoice::all(),
                name => vec![PolicyChoice::parse(name)?],
            };
            choices.extend(
                found.into_iter().filter(|choice| !choices.contains(choice)).collect::<Vec<_>>(),
            );
        }
        Ok(choices)
    }

    fn all() -> Vec<PolicyChoice> {
        let mut all = Vec::new();
        for dram in FRAME_POLICIES {
            for (reclaim, _) in RECLAIMS {
                let of = |admission| PolicyChoice::of_store(dram, reclaim, admission);
                all.extend(ADMISSION_RULES.map(of));
            }
        }
        all.push(PolicyChoice::Clairvoyant);
        all
    }

    fn of_store(
        dram: &'static str,
        reclaim: &'static str,
        admission: &'static str,
    ) -> PolicyChoice {
        PolicyChoice::Store {
            name: format!("{dram}+{reclaim}+{admission}"),
            dram,
            reclaim,
            admission,
        }
    }

    fn parse(name: &str) -> anyhow::Result<PolicyChoice> {
        match name {
            CLAIRVOYANT => return Ok(PolicyChoice::Clairvoyant),
            DEFAULT => {
                let config = pagelith::Config::default();
                let parts = [
                    config.dram.policy.name(),
                    config.ssd.policy.name(),
                    config.ssd.admission.name(),
                ];
                let PolicyChoice::Store { dram, reclaim, admission, .. } =
                    PolicyChoice::parse(&parts.join("+"))?
                else {
                    bail!("the defaults are no policies");
                };
                return Ok(PolicyChoice::Store {
                    name: DEFAULT.to_owned(),
                    dram,
                    reclaim,
                    admission,
                });
            }
            _ => {}
        }
        let parts: Vec<&str> = name.split('+').collect();
        let [dram, reclaim, admission] = parts[..] else {
            bail!(
                "a policy is DRAM+SSD+ADMISSION, {DEFAULT}, {CLAIRVOYANT} or all --policy={name}; for instance s3fifo+recency+worth"
            );
        };
        let reclaims = RECLAIMS.map(|(name, _)| name);
        let choice = PolicyChoice::of_store(
            known("DRAM policy", dram, &FRAME_POLICIES, name)?,
            known("SSD policy", reclaim, &reclaims, name)?,
            known("admission", admission, &ADMISSION_RULES, name)?,
        );
        Ok(choice)
    }

    /// The policy of reclaim, for a choice of the store's policies.
    pub(super) fn reclaim(&self) -> Option<Box<dyn SegmentPolicy>> {
        let PolicyChoice::Store { reclaim, .. } = self else { return None };
        let (_, policy) = RECLAIMS.into_iter().find(|(name, _)| name == reclaim)?;
        segment_policy(policy, REINSERT_RATIO_MAX)
    }

    /// The settings of admission, for a choice of the store's policies.
    pub(super) fn admission(&self) -> Option<AdmissionSettings> {
        let PolicyChoice::Store { admission, .. } = self else { return None };
        AdmissionRule::of_name(admission).map(AdmissionSettings::of_rule)
    }
}

/// The known name that is equal to `part`.
fn known(
    what: &str,
    part: &str,
    names: &[&'static str],
    policy: &str,
) -> anyhow::Result<&'static str> {
    let found = names.iter().find(|name| **name == part).copied();
    found.with_context(|| {
        format!("unknown {what} {part:?}, it is one of {} --policy={policy}", names.join(", "))
    })
}

impl fmt::Display for PolicyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyChoice::Store { name, .. } => f.write_str(name),
            PolicyChoice::Clairvoyant => f.write_str(CLAIRVOYANT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(names: &str) -> anyhow::Result<Vec<PolicyChoice>> {
        PolicyChoice::parse_list(&names.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn list_of_names_is_parsed_and_each_policy_is_kept_once() {
        let names = |list: &str| -> Vec<String> {
            parse(list).expect("known").iter().map(ToString::to_string).collect()
        };
        let some = "lru+fifo+through,default,clairvoyant,lru+fifo+through";
        assert_eq!(names(some), ["lru+fifo+through", "default", "clairvoyant"]);
        let all = names("all");
        assert_eq!(all.len(), 3 * 2 * 3 + 1);
        assert!(all.contains(&"s3fifo+recency+worth".to_owned()), "{all:?}");
    }

    #[test]
    fn every_store_policy_can_be_built() {
        for choice in PolicyChoice::all() {
            let is_bound = choice == PolicyChoice::Clairvoyant;
            assert_eq!(choice.reclaim().is_none(), is_bound, "{choice}");
            assert_eq!(choice.admission().is_none(), is_bound, "{choice}");
        }
    }

    #[test]
    fn unknown_name_is_refused_with_the_known_ones() {
        for (name, expected) in [
            ("lru", "a policy is DRAM+SSD+ADMISSION, default, clairvoyant or all --policy=lru"),
            ("lru+x+through", "unknown SSD policy \"x\", it is one of fifo, recency"),
            ("arc+fifo+worth", "unknown DRAM policy \"arc\", it is one of lru, fifo, s3fifo"),
            ("lru+fifo+", "unknown admission \"\", it is one of through, worth, second-touch"),
        ] {
            let error = parse(name).expect_err(name).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}

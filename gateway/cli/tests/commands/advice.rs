//! What an operator is told about a transaction that blocks the stream.

use tidegate_gateway::readiness::poison_advice;
use tidegate_stream::{FailureClass, NextAct};

#[test]
fn every_class_of_failure_has_advice_that_fits_what_can_clear_it() {
    for class in FailureClass::ALL {
        let advice = poison_advice(class.as_str());
        let advice = advice.unwrap_or_else(|| panic!("{class} has no advice: readiness/advice.rs"));
        match class.next_act() {
            NextAct::ResetOnly => {
                assert!(advice.contains("`tidegate reset --reason …`"), "{class}: {advice}");
                assert!(!advice.contains("poison retry"), "{class}: no retry can clear it: {advice}");
            }
            NextAct::OperatorRetry => assert!(
                advice.contains("`tidegate poison retry`") || advice.contains("`tidegate reset --reason …`"),
                "{class}: {advice}"
            ),
        }
    }
}

//! Asking the cores of a node what they have counted.

use std::fmt;

use futures_channel::{mpsc, oneshot};
use lunette_runtime::MeshError;
use lunette_runtime_core::ids::CoreIndex;

use super::core::Question;
use crate::counting::CoreReport;
use crate::error::NodeError;

/// Asks the cores of a node what they hold and have counted, from whatever thread. It does not keep the
/// node running.
#[derive(Clone)]
pub struct NodeWatch {
    pub(super) questions: Vec<mpsc::Sender<Question>>,
}

impl NodeWatch {
    /// What each core says. A core answers between two turns of its loop: one that is stuck does not, so
    /// whoever asks gives it a time. Dropping the future is enough to ask no further.
    ///
    /// # Errors
    /// [`NodeError::Core`]: a core has ended, or too many questions wait for it.
    pub async fn report(&self) -> Result<Vec<CoreReport>, NodeError> {
        let mut asked = Vec::with_capacity(self.questions.len());
        for (index, questions) in self.questions.iter().enumerate() {
            let core = CoreIndex(u16::try_from(index).expect("cores are bounded"));
            let gone = NodeError::Core(MeshError::ShutDown(core));
            let (answer, answered) = oneshot::channel();
            if questions
                .clone()
                .try_send(Question::Report(answer))
                .is_err()
            {
                return Err(gone);
            }
            asked.push((answered, gone));
        }
        let mut reports = Vec::with_capacity(asked.len());
        for (answered, gone) in asked {
            reports.push(answered.await.map_err(|_gone| gone)?);
        }
        Ok(reports)
    }
}

impl fmt::Debug for NodeWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeWatch({} cores)", self.questions.len())
    }
}

//! The binaries: built once by `components/build`, or those of a folder that `KUBEBUILDER_ASSETS` names.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

#[derive(Debug, Clone)]
pub struct Components {
    folder: PathBuf,
}

impl Components {
    /// Builds what is missing. From nothing that takes five to ten minutes of two cores; it says on stderr what it builds.
    pub fn find() -> Result<Self> {
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("components/build");
        let built = Command::new(&build)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot run {}", build.display()))?;
        ensure!(built.status.success(), "the components cannot be built: {}", built.status);
        let found = Self { folder: PathBuf::from(String::from_utf8(built.stdout)?.trim()) };
        for program in [found.etcd(), found.kube_apiserver(), found.kube_controller_manager()] {
            ensure!(
                program.exists(),
                "{} is missing: does KUBEBUILDER_ASSETS name the right folder?",
                program.display()
            );
        }
        Ok(found)
    }

    pub fn etcd(&self) -> PathBuf {
        self.folder.join("etcd")
    }

    pub fn kube_apiserver(&self) -> PathBuf {
        self.folder.join("kube-apiserver")
    }

    pub fn kube_controller_manager(&self) -> PathBuf {
        self.folder.join("kube-controller-manager")
    }

    pub fn helm(&self) -> PathBuf {
        self.or_on_path("helm")
    }

    pub fn kubectl(&self) -> PathBuf {
        self.or_on_path("kubectl")
    }

    /// A folder of somebody's own may lack the clients.
    fn or_on_path(&self, name: &str) -> PathBuf {
        let ours = self.folder.join(name);
        if ours.exists() { ours } else { PathBuf::from(name) }
    }
}

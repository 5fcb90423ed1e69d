"""Settings that sites and vendors recommend, each with its page.

A variable that the job's own ``setup`` has set stays as it is.
"""

from collections.abc import Mapping

OLCF = "https://docs.olcf.ornl.gov/software/analytics/pytorch_frontier.html"
LUMI_AI = "https://github.com/Lumi-supercomputer/LUMI-AI-Guide/blob/main/05-multi-gpu-and-node/run_ddp_srun_4.sh"
HPE = "https://github.com/HewlettPackard/shs-ccl-docs/blob/main/ccl_env.sh"
ALCF = "https://docs.alcf.anl.gov/aurora/data-science/frameworks/oneCCL/"
ALCF_COURSE = "https://github.com/argonne-lcf/ATPESC_MachineLearning/tree/HEAD/01advanced_profiling_deep_learning"

Setup = tuple[tuple[str, str], ...]  # lines of bash with their sources


def exports(variables: Mapping[str, str], source: str) -> Setup:
    """Return lines that export variables which are not set yet.

    >>> exports({"NCCL_CROSS_NIC": "1"}, "https://a.page")
    (('export NCCL_CROSS_NIC="${NCCL_CROSS_NIC:-1}"', 'https://a.page'),)
    """
    return tuple((f'export {name}="${{{name}:-{value}}}"', source) for name, value in variables.items())


SLINGSHOT = {
    "NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3",
    "NCCL_CROSS_NIC": "1",
    "NCCL_NET_GDR_LEVEL": "PHB",
    "FI_CXI_DISABLE_HOST_REGISTER": "1",
    "FI_CXI_DEFAULT_CQ_SIZE": "131072",
    "FI_CXI_DEFAULT_TX_SIZE": "2048",
    "FI_CXI_RX_MATCH_MODE": "hybrid",
}
"""Variables of NCCL and RCCL with the libfabric plug-in. The alternative rendezvous needs a directive and slows MPI, so that it is not among them."""

_FINE_GRAIN = {"HSA_FORCE_FINE_GRAIN_PCIE": "1"}
# MIOpen's databases fail on shared file systems
_MIOPEN = {"MIOPEN_USER_DB_PATH": "/tmp/$USER-miopen-$SLURM_JOB_ID", "MIOPEN_CUSTOM_CACHE_DIR": "$MIOPEN_USER_DB_PATH"}

FRONTIER: Setup = (
    ("module load rccl-net-plugin", OLCF),  # after the ROCm module of job.setup
    *exports(SLINGSHOT | _FINE_GRAIN | {"FI_MR_CACHE_MONITOR": "kdreg2"}, OLCF),
    *exports(_MIOPEN, OLCF),
)

LUMI: Setup = (
    *exports(SLINGSHOT | _FINE_GRAIN | {"FI_MR_CACHE_MONITOR": "userfaultfd"}, HPE),
    *exports(_MIOPEN, LUMI_AI),
)

PERLMUTTER: Setup = exports(SLINGSHOT | {"FI_MR_CACHE_MONITOR": "userfaultfd"}, HPE)

_ONECCL = {
    "CCL_PROCESS_LAUNCHER": "pmix",
    "CCL_ATL_TRANSPORT": "mpi",
    "CCL_KVS_MODE": "mpi",
    "CCL_KVS_USE_MPI_RANKS": "1",
    "CCL_KVS_CONNECTION_TIMEOUT": "600",
    "CCL_CONFIGURATION": "cpu_gpu_dpcpp",
    "CCL_ALLREDUCE": "topo",
    "CCL_ALLREDUCE_SCALEOUT": "rabenseifner",
    "CCL_BCAST": "double_tree",
    "CCL_ZE_CACHE_OPEN_IPC_HANDLES_THRESHOLD": "1024",
    "FI_CXI_DEFAULT_CQ_SIZE": "1048576",
    "FI_CXI_RX_MATCH_MODE": "hybrid",
    "FI_MR_CACHE_MONITOR": "disabled",
}
# every tile is a device of its own, one for each rank
AURORA: Setup = (*exports(_ONECCL, ALCF), *exports({"ZE_FLAT_DEVICE_HIERARCHY": "FLAT"}, ALCF_COURSE))

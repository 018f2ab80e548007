// kvtrie._core: the C++ library as Python sees it. One init function for each topic. The types of arguments and
// results are in the signatures (typed.h), and from there in python/kvtrie/_core.pyi.
#include <pybind11/pybind11.h>

#include "base_class.h"
#include "refusals.h"

namespace py = pybind11;

namespace kvtrie::binding {
void init_errors(py::module_& m);
void init_gil(py::module_& m);
void init_device(py::module_& m);
void init_tensor(py::module_& m);
void init_ops(py::module_& m);
void init_ops_experts(py::module_& m);
void init_ops_recurrent(py::module_& m);
void init_ops_chosen(py::module_& m);
void init_ops_sample(py::module_& m);
void init_ops_weights(py::module_& m);
void init_caches(py::module_& m);
void init_recurrent(py::module_& m);
void init_encoder(py::module_& m);
void init_hybrid(py::module_& m);
void init_trie(py::module_& m);
void init_tokens(py::module_& m);
void init_token_texts(py::module_& m);
void init_ending(py::module_& m);
void init_dlpack_import(py::module_& m);
void init_session(py::module_& m);
void init_step_graph(py::module_& m);
void init_prefix_cache(py::module_& m);
void init_remote_store(py::module_& m);
void init_replay(py::module_& m);
void init_inspect(py::module_& m);
}  // namespace kvtrie::binding

PYBIND11_MODULE(_core_contents, m) {
  m.doc() = "The C++ core of kvtrie. Use `import kvtrie`.";
  m.attr("__version__") = KVTRIE_VERSION;
  kvtrie::binding::prepare_base_class();
  kvtrie::binding::init_errors(m);
  kvtrie::binding::init_gil(m);
  kvtrie::binding::init_device(m);
  kvtrie::binding::init_tensor(m);
  kvtrie::binding::init_ops(m);
  kvtrie::binding::init_ops_recurrent(m);
  kvtrie::binding::init_ops_chosen(m);
  kvtrie::binding::init_ops_sample(m);
  kvtrie::binding::init_ops_weights(m);
  kvtrie::binding::init_ops_experts(m);
  kvtrie::binding::init_caches(m);
  kvtrie::binding::init_recurrent(m);
  kvtrie::binding::init_encoder(m);
  kvtrie::binding::init_hybrid(m);
  kvtrie::binding::init_trie(m);
  kvtrie::binding::init_tokens(m);
  kvtrie::binding::init_token_texts(m);
  kvtrie::binding::init_ending(m);
  kvtrie::binding::init_dlpack_import(m);
  kvtrie::binding::init_session(m);
  kvtrie::binding::init_step_graph(m);
  kvtrie::binding::init_prefix_cache(m);
  kvtrie::binding::init_remote_store(m);
  kvtrie::binding::init_replay(m);
  kvtrie::binding::init_inspect(m);
  kvtrie::binding::speak_for_pybind11(m);
}

// Called by Python. Threads, locks and the registry of devices belong to a process, Python's objects in them to one
// interpreter. This is asked before anything of pybind11 runs, which in a subinterpreter would wait for ever for the
// GIL that its thread has (Python 3.11).
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return PyInit__core_contents();
  PyErr_SetString(PyExc_ImportError,
                  "[kvtrie] interpreter: got a subinterpreter, allowed the main interpreter of a process: start a "
                  "process for each");
  return nullptr;
}

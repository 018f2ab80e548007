// kvtrie._core: the C++ library as Python sees it. One init function for each topic; python/kvtrie/_core.pyi has the
// types.
#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace kvtrie::binding {
void init_errors(py::module_& m);
void init_gil(py::module_& m);
void init_device(py::module_& m);
void init_tensor(py::module_& m);
void init_ops(py::module_& m);
void init_ops_experts(py::module_& m);
void init_ops_recurrent(py::module_& m);
void init_ops_weights(py::module_& m);
void init_caches(py::module_& m);
void init_recurrent(py::module_& m);
void init_encoder(py::module_& m);
void init_hybrid(py::module_& m);
void init_trie(py::module_& m);
void init_token_texts(py::module_& m);
void init_session(py::module_& m);
void init_step_graph(py::module_& m);
void init_prefix_cache(py::module_& m);
void init_remote_store(py::module_& m);
void init_replay(py::module_& m);
void init_inspect(py::module_& m);
}  // namespace kvtrie::binding

namespace {

// pybind11 gives an object whose __init__ did not run, or failed, memory of no contents when a method is called on it.
void* refuse_uninitialised(std::size_t) {
  throw pybind11::type_error("an object of kvtrie was used whose __init__ did not run, or failed");
}

void refuse_uninitialised_objects(const pybind11::module_& m) {
  for (const auto& [name, value] : pybind11::dict(m.attr("__dict__"))) {
    if (PyType_Check(value.ptr()) == 0) continue;
    auto* const info = pybind11::detail::get_type_info(reinterpret_cast<PyTypeObject*>(value.ptr()));
    if (info != nullptr) info->operator_new = &refuse_uninitialised;
  }
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of kvtrie. Use `import kvtrie`.";
  m.attr("__version__") = KVTRIE_VERSION;
  kvtrie::binding::init_errors(m);
  kvtrie::binding::init_gil(m);
  kvtrie::binding::init_device(m);
  kvtrie::binding::init_tensor(m);
  kvtrie::binding::init_ops(m);
  kvtrie::binding::init_ops_recurrent(m);
  kvtrie::binding::init_ops_weights(m);
  kvtrie::binding::init_ops_experts(m);
  kvtrie::binding::init_caches(m);
  kvtrie::binding::init_recurrent(m);
  kvtrie::binding::init_encoder(m);
  kvtrie::binding::init_hybrid(m);
  kvtrie::binding::init_trie(m);
  kvtrie::binding::init_token_texts(m);
  kvtrie::binding::init_session(m);
  kvtrie::binding::init_step_graph(m);
  kvtrie::binding::init_prefix_cache(m);
  kvtrie::binding::init_remote_store(m);
  kvtrie::binding::init_replay(m);
  kvtrie::binding::init_inspect(m);
  refuse_uninitialised_objects(m);
}

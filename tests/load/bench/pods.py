"""The pods that benchmarks ask for."""

from typing import Any

from tests.support import reviews


def pods() -> dict[str, dict[str, Any]]:
    """A typical pod: two containers, a volume of each common kind; and one with 400 variables."""
    pod = reviews.pod()
    [main] = pod["spec"]["containers"]
    main["env"] = [{"name": f"SETTING_{number}", "value": f"value {number}"} for number in range(8)]
    mounts = [{"name": name, "mountPath": f"/mnt/{name}"} for name in ("cache", "config", "token")]
    main["volumeMounts"] = mounts
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1}
    main["livenessProbe"] = main["readinessProbe"] = probe
    proxy = {**reviews.pod()["spec"]["containers"][0], "name": "proxy", "image": "registry.example/proxy:1"}
    volumes = [
        {"name": "cache", "emptyDir": {}},
        {"name": "config", "configMap": {"name": "model", "defaultMode": 420}},
    ]
    volumes.append({"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}})
    pod["spec"] |= {
        "containers": [main, proxy],
        "volumes": volumes,
        "serviceAccountName": "model",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [
            {
                "key": "node.kubernetes.io/not-ready",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
        ],
    }
    many = reviews.pod()
    many["spec"]["containers"][0]["env"] = [{"name": f"SETTING_{n}", "value": f"value {n}"} for n in range(400)]
    return {"typical": pod, "400 env": many}

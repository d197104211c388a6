// Shows the OpenAPI document of this server; "Authorize" takes an API key, a session's cookie works as it is.
window.addEventListener("load", () => {
  window.page = SwaggerUIBundle({
    url: "/openapi.json",
    dom_id: "#page",
    deepLinking: true,
    docExpansion: "none",
    filter: true,
    persistAuthorization: false,
    displayRequestDuration: true,
    validatorUrl: null,
  });
});
